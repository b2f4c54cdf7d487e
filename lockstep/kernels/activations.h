// Activations and their derivatives; their formulas are written nowhere else. Each kind is a pair
// of functions of one element: the value, and dy times the derivative. The derivative is computed
// from the output where that suffices (the output may then overwrite the input), otherwise from the
// input. All stay finite for inputs of any size and propagate NaN.
//
// Math provides exponentials and the like: StandardMath for any floating type, VectorMath
// (vector_math.h) for f32, vectorised.
#pragma once

#include <cmath>
#include <numbers>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/vectorized.h"

namespace lockstep {

struct StandardMath {
  template <class T>
  static T logistic(T x) {
    return T{1} / (T{1} + std::exp(-x));
  }
  template <class T>
  static T tanh(T x) {
    return std::tanh(x);
  }
  template <class T>
  static T log1p_exp_minus(T x) {
    return std::log1p(std::exp(-x));
  }
  template <class T>
  static T bell(T x) {
    return std::exp(x * x * T(-0.5));
  }
  // Uses erfc, which stays accurate where Φ is close to 0.
  template <class T>
  static T normal_cumulative(T x) {
    return T(0.5) * std::erfc(x * static_cast<T>(-0.5 * std::numbers::sqrt2));
  }
};

struct Linear {
  template <class T>
  LOCKSTEP_INLINE T value(T x) const {
    return x;
  }
};

struct Relu {
  template <class T>
  LOCKSTEP_INLINE T value(T x) const {
    return x < T{0} ? T{0} : x;
  }
  template <class T>
  LOCKSTEP_INLINE T grad(T dy, T y) const {
    return y > T{0} ? dy : T{0};
  }
};

struct Relu6 {
  template <class T>
  LOCKSTEP_INLINE T value(T x) const {
    return x < T{0} ? T{0} : (x > T{6} ? T{6} : x);
  }
  template <class T>
  LOCKSTEP_INLINE T grad(T dy, T y) const {
    return ((y > T{0}) & (y < T{6})) ? dy : T{0};
  }
};

struct LeakyRelu {
  double alpha = 0.2;
  template <class T>
  LOCKSTEP_INLINE T value(T x) const {
    return x < T{0} ? x * static_cast<T>(alpha) : x;
  }
  template <class T>
  LOCKSTEP_INLINE T grad(T dy, T y) const {
    return y > T{0} ? dy : dy * static_cast<T>(alpha);
  }
};

// x Φ(x). Hendrycks and Gimpel, 2016.
template <class Math>
struct Gelu {
  template <class T>
  LOCKSTEP_INLINE T value(T x) const {
    return x * Math::normal_cumulative(x);
  }
  template <class T>
  LOCKSTEP_INLINE T grad(T dy, T x) const {
    const T density =
        Math::bell(x) * static_cast<T>(0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2);
    return dy * (Math::normal_cumulative(x) + x * density);
  }
};

// The form of the same paper that most language models use: x (1 + tanh u) / 2 with
// u = sqrt(2 / pi) (x + 0.044715 x³). (1 + tanh u) / 2 is the logistic function of 2u, which keeps
// its precision where it is close to 0.
template <class Math>
struct GeluTanh {
  template <class T>
  static constexpr T kScale = static_cast<T>(2.0 * std::numbers::inv_sqrtpi * std::numbers::sqrt2);
  template <class T>
  static constexpr T kCubic = T(0.044715);

  template <class T>
  LOCKSTEP_INLINE T value(T x) const {
    return x * share(x);
  }
  template <class T>
  LOCKSTEP_INLINE T grad(T dy, T x) const {
    const T s = share(x);
    const T rest = s * (T{1} - s);  // 0 long before x² overflows
    const T slope = rest == T{0} ? T{0} : rest * kScale<T> * (T{1} + T{3} * kCubic<T> * x * x);
    return dy * (s + x * slope);
  }
  template <class T>
  LOCKSTEP_INLINE static T share(T x) {
    return Math::logistic(kScale<T> * (x + kCubic<T> * x * x * x));
  }
};

template <class Math>
struct Silu {
  template <class T>
  LOCKSTEP_INLINE T value(T x) const {
    return x * Math::logistic(x);
  }
  template <class T>
  LOCKSTEP_INLINE T grad(T dy, T x) const {
    const T s = Math::logistic(x);
    return dy * s * (T{1} + x * (T{1} - s));
  }
};

template <class Math>
struct Tanh {
  template <class T>
  LOCKSTEP_INLINE T value(T x) const {
    return Math::tanh(x);
  }
  template <class T>
  LOCKSTEP_INLINE T grad(T dy, T y) const {
    return dy * (T{1} - y * y);
  }
};

template <class Math>
struct Sigmoid {
  template <class T>
  LOCKSTEP_INLINE T value(T x) const {
    return Math::logistic(x);
  }
  template <class T>
  LOCKSTEP_INLINE T grad(T dy, T y) const {
    return dy * y * (T{1} - y);
  }
};

template <class Math>
struct Softplus {
  template <class T>
  LOCKSTEP_INLINE T value(T x) const {
    return (x < T{0} ? T{0} : x) + Math::log1p_exp_minus(std::fabs(x));
  }
  template <class T>
  LOCKSTEP_INLINE T grad(T dy, T x) const {
    return dy * Math::logistic(x);
  }
};

// Calls f with the functions of a kind; alpha is the slope of leaky_relu.
template <class Math, class F>
auto with_activation(std::string_view kind, double alpha, F&& f) {
  if (kind == "relu") return f(Relu());
  if (kind == "relu6") return f(Relu6());
  if (kind == "leaky_relu") return f(LeakyRelu{alpha});
  if (kind == "gelu") return f(Gelu<Math>());
  if (kind == "gelu_tanh") return f(GeluTanh<Math>());
  if (kind == "silu") return f(Silu<Math>());
  if (kind == "tanh") return f(Tanh<Math>());
  if (kind == "sigmoid") return f(Sigmoid<Math>());
  if (kind == "softplus") return f(Softplus<Math>());
  fail<UsageError>("'{}' is not an activation", kind);
}

}  // namespace lockstep
