// The beginning of the generated source of pointwise programs: element types and the elementwise
// ops, by the formulas of reference/functions.h, activations.h and activations.cuh. NVRTC has no
// headers, so everything is written out.
#pragma once

namespace lockstep {

inline constexpr const char* kPointwisePrelude = R"(
#define INLINE __device__ __forceinline__

struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };

template <class T> INLINE T widen(T x) { return x; }
INLINE float widen(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}
INLINE float widen(bf16 x) { return __uint_as_float((unsigned)x.bits << 16); }

template <class T> struct Narrow {
  static INLINE T of(T x) { return x; }
};
template <> struct Narrow<f16> {
  static INLINE f16 of(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
};
template <> struct Narrow<bf16> {
  static INLINE bf16 of(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
};

template <class T, int V> struct alignas(sizeof(T) * V) Vector { T items[V]; };
template <class T, int V> INLINE Vector<T, V> load(const T* from) {
  return *reinterpret_cast<const Vector<T, V>*>(from);
}
template <class T, int V> INLINE void store(T* to, const Vector<T, V>& vector) {
  *reinterpret_cast<Vector<T, V>*>(to) = vector;
}

INLINE float exponential(float x) { return expf(x); }
INLINE double exponential(double x) { return exp(x); }
INLINE float logarithm(float x) { return logf(x); }
INLINE double logarithm(double x) { return log(x); }
INLINE float root(float x) { return sqrtf(x); }
INLINE double root(double x) { return sqrt(x); }
INLINE float power(float a, float b) { return powf(a, b); }
INLINE double power(double a, double b) { return pow(a, b); }
INLINE float hyperbolic(float x) { return tanhf(x); }
INLINE double hyperbolic(double x) { return tanh(x); }
INLINE float magnitude(float x) { return fabsf(x); }
INLINE double magnitude(double x) { return fabs(x); }
INLINE float logistic(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
INLINE double logistic(double x) { return 1.0 / (1.0 + exp(-x)); }
INLINE float log1p_exp_minus(float x) { return log1pf(expf(-x)); }
INLINE double log1p_exp_minus(double x) { return log1p(exp(-x)); }
INLINE float normal_cumulative(float x) { return 0.5f * erfcf(x * -0.70710678118654752f); }
INLINE double normal_cumulative(double x) { return 0.5 * erfc(x * -0.70710678118654752); }

// Integer arithmetic wraps around.
#define ARITHMETIC(name, sign)                                                           \
  INLINE float name(float a, float b) { return a sign b; }                               \
  INLINE double name(double a, double b) { return a sign b; }                            \
  template <class T> INLINE T name(T a, T b) {                                           \
    return (T)((unsigned long long)a sign (unsigned long long)b);                        \
  }
ARITHMETIC(add, +)
ARITHMETIC(sub, -)
ARITHMETIC(mul, *)

// A NaN on either side propagates.
template <class T> INLINE T maximum(T a, T b) { return (a > b) | (a != a) ? a : b; }
template <class T> INLINE T minimum(T a, T b) { return (a < b) | (a != a) ? a : b; }
template <class T> INLINE T neg(T x) { return sub((T)0, x); }
INLINE float neg(float x) { return -x; }
INLINE double neg(double x) { return -x; }
template <class T> INLINE T absolute(T x) { return x < (T)0 ? neg(x) : x; }
INLINE float absolute(float x) { return magnitude(x); }
INLINE double absolute(double x) { return magnitude(x); }
template <class T> INLINE T sign(T x) { return x != x ? x : (T)((x > (T)0) - (x < (T)0)); }

// Conversion that is defined for every value: out-of-range numbers saturate, NaN becomes 0 as an
// integer and true as a bool.
template <class To> struct Convert {
  template <class From> static INLINE To of(From x) { return (To)x; }
};
template <> struct Convert<bool> {
  template <class From> static INLINE bool of(From x) { return x != (From)0; }
};
#define CONVERT(To, least, most)                                          \
  template <> struct Convert<To> {                                        \
    template <class From> static INLINE To of(From x) { return (To)x; }   \
    static INLINE To of(float x) { return clamp(x); }                     \
    static INLINE To of(double x) { return clamp(x); }                    \
    template <class From> static INLINE To clamp(From x) {                \
      if (x != x) return 0;                                               \
      if (x <= (From)(least)) return (least);                             \
      if (x >= (From)(most)) return (most);                               \
      return (To)x;                                                       \
    }                                                                     \
  };
CONVERT(int, -2147483647 - 1, 2147483647)
CONVERT(long long, -9223372036854775807ll - 1, 9223372036854775807ll)
CONVERT(unsigned char, 0, 255)
template <class T> INLINE float rounded(float x) { return widen(Narrow<T>::of(x)); }

template <class T> INLINE T relu(T x) { return x < (T)0 ? (T)0 : x; }
template <class T> INLINE T relu_grad(T dy, T y) { return y > (T)0 ? dy : (T)0; }
template <class T> INLINE T relu6(T x) { return x < (T)0 ? (T)0 : (x > (T)6 ? (T)6 : x); }
template <class T> INLINE T relu6_grad(T dy, T y) {
  return ((y > (T)0) & (y < (T)6)) ? dy : (T)0;
}
template <class T> INLINE T leaky_relu(T x, double alpha) { return x < (T)0 ? x * (T)alpha : x; }
template <class T> INLINE T leaky_relu_grad(T dy, T y, double alpha) {
  return y > (T)0 ? dy : dy * (T)alpha;
}
template <class T> INLINE T gelu(T x) { return x * normal_cumulative(x); }
template <class T> INLINE T gelu_grad(T dy, T x) {
  const T density = exponential(x * x * (T)-0.5) * (T)0.39894228040143267794;
  return dy * (normal_cumulative(x) + x * density);
}
template <class T> INLINE T gelu_share(T x) {
  return logistic((T)1.59576912160573071176 * (x + (T)0.044715 * x * x * x));
}
template <class T> INLINE T gelu_tanh(T x) { return x * gelu_share(x); }
template <class T> INLINE T gelu_tanh_grad(T dy, T x) {
  const T s = gelu_share(x);
  const T rest = s * ((T)1 - s);
  const T cubic = (T)1 + (T)3 * (T)0.044715 * x * x;
  const T slope = rest == (T)0 ? (T)0 : rest * (T)1.59576912160573071176 * cubic;
  return dy * (s + x * slope);
}
template <class T> INLINE T silu(T x) { return x * logistic(x); }
template <class T> INLINE T silu_grad(T dy, T x) {
  const T s = logistic(x);
  return dy * s * ((T)1 + x * ((T)1 - s));
}
template <class T> INLINE T tanh_grad(T dy, T y) { return dy * ((T)1 - y * y); }
template <class T> INLINE T sigmoid_grad(T dy, T y) { return dy * y * ((T)1 - y); }
template <class T> INLINE T softplus(T x) {
  return (x < (T)0 ? (T)0 : x) + log1p_exp_minus(magnitude(x));
}
template <class T> INLINE T softplus_grad(T dy, T x) { return dy * logistic(x); }
)";

}  // namespace lockstep
