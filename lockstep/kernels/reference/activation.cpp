// Activations and their derivatives. Each kind is a pair of functions of one element: the value,
// and dy times the derivative, from the output where that is enough (it then may lie in place of
// the input) and from the input else. All stay finite for inputs of any size.
#include <cmath>
#include <numbers>

#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/reference/reference.h"
#include "lockstep/kernels/reference/walk.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {
namespace {

template <class T>
T logistic(T x) {
  return T{1} / (T{1} + std::exp(-x));
}

// Comparisons are written so that a NaN goes through.
struct Relu {
  template <class T>
  T value(T x) const {
    return x < T{0} ? T{0} : x;
  }
  template <class T>
  T grad(T dy, T y) const {
    return y > T{0} ? dy : T{0};
  }
};

struct Relu6 {
  template <class T>
  T value(T x) const {
    return x < T{0} ? T{0} : (x > T{6} ? T{6} : x);
  }
  template <class T>
  T grad(T dy, T y) const {
    return (y > T{0}) & (y < T{6}) ? dy : T{0};
  }
};

struct LeakyRelu {
  double alpha;
  template <class T>
  T value(T x) const {
    return x < T{0} ? x * static_cast<T>(alpha) : x;
  }
  template <class T>
  T grad(T dy, T y) const {
    return y > T{0} ? dy : dy * static_cast<T>(alpha);
  }
};

// x Φ(x), by erfc: exact where Φ is close to 0. Hendrycks and Gimpel, 2016.
struct Gelu {
  template <class T>
  T value(T x) const {
    return x * cumulative(x);
  }
  template <class T>
  T grad(T dy, T x) const {
    const T density = std::exp(x * x * T(-0.5)) *
                      static_cast<T>(0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2);
    return dy * (cumulative(x) + x * density);
  }
  template <class T>
  static T cumulative(T x) {
    return T(0.5) * std::erfc(x * static_cast<T>(-0.5 * std::numbers::sqrt2));
  }
};

// The form of the same paper that most language models use: x (1 + tanh u) / 2 with
// u = sqrt(2 / pi) (x + 0.044715 x³).
struct GeluTanh {
  template <class T>
  static constexpr T kScale = static_cast<T>(std::numbers::inv_sqrtpi* std::numbers::sqrt2);
  template <class T>
  static constexpr T kCubic = T(0.044715);

  template <class T>
  T value(T x) const {
    return T(0.5) * x * (T{1} + inner(x));
  }
  template <class T>
  T grad(T dy, T x) const {
    const T t = inner(x);
    const T rest = T{1} - t * t;  // 0 long before x² overflows
    const T slope = rest == T{0} ? T{0} : rest * kScale<T> * (T{1} + T{3} * kCubic<T> * x * x);
    return dy * T(0.5) * (T{1} + t + x * slope);
  }
  template <class T>
  static T inner(T x) {
    return std::tanh(kScale<T> * (x + kCubic<T> * x * x * x));
  }
};

struct Silu {
  template <class T>
  T value(T x) const {
    return x * logistic(x);
  }
  template <class T>
  T grad(T dy, T x) const {
    const T s = logistic(x);
    return dy * s * (T{1} + x * (T{1} - s));
  }
};

struct Tanh {
  template <class T>
  T value(T x) const {
    return std::tanh(x);
  }
  template <class T>
  T grad(T dy, T y) const {
    return dy * (T{1} - y * y);
  }
};

struct Sigmoid {
  template <class T>
  T value(T x) const {
    return logistic(x);
  }
  template <class T>
  T grad(T dy, T y) const {
    return dy * y * (T{1} - y);
  }
};

struct Softplus {
  template <class T>
  T value(T x) const {
    return (x < T{0} ? T{0} : x) + std::log1p(std::exp(-std::fabs(x)));
  }
  template <class T>
  T grad(T dy, T x) const {
    return dy * logistic(x);
  }
};

// Calls f with the functions of a kind.
template <class F>
std::unique_ptr<Kernel> with_activation(const Attrs& attrs, F&& f) {
  const std::string& kind = attrs.text("kind");
  if (kind == "relu") return f(Relu());
  if (kind == "relu6") return f(Relu6());
  if (kind == "leaky_relu") return f(LeakyRelu{attrs.real("alpha")});
  if (kind == "gelu") return f(Gelu());
  if (kind == "gelu_tanh") return f(GeluTanh());
  if (kind == "silu") return f(Silu());
  if (kind == "tanh") return f(Tanh());
  if (kind == "sigmoid") return f(Sigmoid());
  if (kind == "softplus") return f(Softplus());
  fail<InternalError>("there is no kernel for the activation {}", kind);
}

template <class T, class A>
std::unique_ptr<Kernel> value_kernel(std::int64_t elements, A activation) {
  return make_kernel([elements, activation](const Binding& binding) {
    const T* x = binding.in<T>(0);
    T* y = binding.out<T>(0);
    parallel_for(elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) y[i] = activation.value(x[i]);
    });
  });
}

template <class T, class A>
std::unique_ptr<Kernel> grad_kernel(std::int64_t elements, A activation) {
  return make_kernel([elements, activation](const Binding& binding) {
    const T* dy = binding.in<T>(0);
    const T* operand = binding.in<T>(1);
    T* dx = binding.out<T>(0);
    parallel_for(elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
#pragma omp simd
      for (std::int64_t i = begin; i < end; ++i) dx[i] = activation.grad(dy[i], operand[i]);
    });
  });
}

std::unique_ptr<Kernel> make_activation(const KernelCall& call) {
  const std::int64_t elements = call.out_shape(0).elements();
  return with_activation(call.attrs(), [&](auto activation) {
    return call.in_dtype(0) == DType::F64 ? value_kernel<double>(elements, activation)
                                          : value_kernel<float>(elements, activation);
  });
}

std::unique_ptr<Kernel> make_activation_grad(const KernelCall& call) {
  const std::int64_t elements = call.out_shape(0).elements();
  return with_activation(call.attrs(), [&](auto activation) {
    return call.in_dtype(0) == DType::F64 ? grad_kernel<double>(elements, activation)
                                          : grad_kernel<float>(elements, activation);
  });
}

bool supports(const KernelCall& call) {
  const DType dtype = call.in_dtype(0);
  return call.row_major() && (dtype == DType::F32 || dtype == DType::F64);
}

}  // namespace

void add_reference_activation(KernelLibrary& library) {
  library.add(Op::Activation,
              {.name = "reference.activation", .supports = supports, .make = make_activation});
  library.add(
      Op::ActivationGrad,
      {.name = "reference.activation_grad", .supports = supports, .make = make_activation_grad});
}

}  // namespace lockstep
