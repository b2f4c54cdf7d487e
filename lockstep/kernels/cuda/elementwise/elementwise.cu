// Elementwise arithmetic and logic: one functor per op, all run by the kernels of map.cuh.
// Comparisons, casts and activations are in separate files.
#include <type_traits>

#include "lockstep/kernels/cuda/elementwise/elementwise.cuh"
#include "lockstep/kernels/cuda/primitives/generic_types.h"

namespace lockstep {
namespace {

// Integer arithmetic wraps around, as two's complement does; C++ leaves signed overflow undefined.
template <class T, class F>
__device__ __forceinline__ T wrapping(T a, T b, F f) {
  if constexpr (std::is_integral_v<T>) {
    using U = std::make_unsigned_t<T>;
    return static_cast<T>(f(static_cast<U>(a), static_cast<U>(b)));
  } else {
    return f(a, b);
  }
}

struct Plus {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Minus {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x - y; });
  }
};
struct Times {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};
struct Over {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a / b;
  }
};
struct Power {
  __device__ float operator()(float a, float b) const { return powf(a, b); }
};
// A NaN on either side propagates.
struct Larger {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return (a > b) | (a != a) ? a : b;
  }
};
struct Smaller {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return (a < b) | (a != a) ? a : b;
  }
};
struct Both {
  __device__ bool operator()(bool a, bool b) const { return a & b; }
};
struct Any {
  __device__ bool operator()(bool a, bool b) const { return a | b; }
};
struct Not {
  __device__ bool operator()(bool x) const { return !x; }
};
struct Negative {
  template <class T>
  __device__ T operator()(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return Minus()(T{0}, x);
    } else {
      return -x;
    }
  }
};
struct Absolute {
  template <class T>
  __device__ T operator()(T x) const {
    if constexpr (std::is_unsigned_v<T>) {
      return x;
    } else if constexpr (std::is_integral_v<T>) {
      return x < T{0} ? Negative()(x) : x;
    } else {
      return fabs(x);
    }
  }
};
struct Sign {
  template <class T>
  __device__ T operator()(T x) const {
    if constexpr (std::is_unsigned_v<T>) {
      return static_cast<T>(x != T{0});
    } else {
      if (x != x) return x;  // NaN
      return static_cast<T>((x > T{0}) - (x < T{0}));
    }
  }
};
struct Exponential {
  __device__ float operator()(float x) const { return expf(x); }
};
struct Logarithm {
  __device__ float operator()(float x) const { return logf(x); }
};
struct SquareRoot {
  __device__ float operator()(float x) const { return sqrtf(x); }
};
struct ReciprocalRoot {
  __device__ float operator()(float x) const { return 1.0f / sqrtf(x); }
};
struct Squared {
  template <class T>
  __device__ T operator()(T x) const {
    return Times()(x, x);
  }
};

// Generic types share one functor for all binary or unary ops, which switches on the op per
// element.
struct RareBinary {
  Op op;

  template <class T>
  __device__ T operator()(T a, T b) const {
    switch (op) {
      case Op::Add:
        return Plus()(a, b);
      case Op::Sub:
        return Minus()(a, b);
      case Op::Mul:
        return Times()(a, b);
      case Op::Maximum:
        return Larger()(a, b);
      default:
        return Smaller()(a, b);
    }
  }
};
struct RareUnary {
  Op op;

  template <class T>
  __device__ T operator()(T x) const {
    switch (op) {
      case Op::Neg:
        return Negative()(x);
      case Op::Abs:
        return Absolute()(x);
      case Op::Sign:
        return Sign()(x);
      default:
        return Squared()(x);
    }
  }
};

// Calls f with a zero of the type of the op's inputs, which cannot be bool.
template <class F>
std::unique_ptr<Kernel> with_number(const KernelCall& call, F&& f) {
  return cuda_dispatch(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>) {
      fail<InternalError>("[cuda] there is no arithmetic on {}", name_of(call.in_dtype(0)));
    } else {
      return f(zero);
    }
  });
}

// One maker per set of dtypes that an op accepts.

template <class F>
std::unique_ptr<Kernel> make_binary(const KernelCall& call) {
  const StridedWalk<2> walk = operand_walk<2>(call);
  return with_number(call, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (kGenericType<T>) {
      return make_map_binary<RareBinary, T, T, T>(walk, RareBinary{call.node.op});
    } else {
      return make_map_binary<F, T, T, T>(walk, F());
    }
  });
}

template <class F>
std::unique_ptr<Kernel> make_floating_binary(const KernelCall& call) {
  const StridedWalk<2> walk = operand_walk<2>(call);
  return cuda_dispatch_float(call.in_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    return make_map_binary<F, T, T, T>(walk, F());
  });
}

std::unique_ptr<Kernel> make_quotient(const KernelCall& call) {
  if (call.in_dtype(0) != DType::F64) return make_floating_binary<Over>(call);
  return make_map_binary<Over, double, double, double>(operand_walk<2>(call), Over());
}

template <class F>
std::unique_ptr<Kernel> make_logic(const KernelCall& call) {
  return make_map_binary<F, bool, bool, bool>(operand_walk<2>(call), F());
}

template <class F>
std::unique_ptr<Kernel> make_unary(const KernelCall& call) {
  return with_number(call, [&](auto zero) {
    using T = decltype(zero);
    const std::int64_t count = call.out_shape(0).elements();
    if constexpr (kGenericType<T>) {
      return make_map_unary<RareUnary, T, T>(count, RareUnary{call.node.op});
    } else {
      return make_map_unary<F, T, T>(count, F());
    }
  });
}

template <class F>
std::unique_ptr<Kernel> make_floating_unary(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(0), [&](auto zero) {
    using T = decltype(zero);
    return make_map_unary<F, T, T>(call.out_shape(0).elements(), F());
  });
}

std::unique_ptr<Kernel> make_not(const KernelCall& call) {
  return make_map_unary<Not, bool, bool>(call.out_shape(0).elements(), Not());
}

}  // namespace

void add_cuda_elementwise(KernelLibrary& library) {
  add_elementwise(library, Op::Add, "cuda.add", make_binary<Plus>);
  add_elementwise(library, Op::Sub, "cuda.sub", make_binary<Minus>);
  add_elementwise(library, Op::Mul, "cuda.mul", make_binary<Times>);
  add_elementwise(library, Op::Div, "cuda.div", make_quotient);
  add_elementwise(library, Op::Pow, "cuda.pow", make_floating_binary<Power>);
  add_elementwise(library, Op::Maximum, "cuda.maximum", make_binary<Larger>);
  add_elementwise(library, Op::Minimum, "cuda.minimum", make_binary<Smaller>);
  add_elementwise(library, Op::LogicalAnd, "cuda.logical_and", make_logic<Both>);
  add_elementwise(library, Op::LogicalOr, "cuda.logical_or", make_logic<Any>);
  add_elementwise(library, Op::LogicalNot, "cuda.logical_not", make_not);
  add_elementwise(library, Op::Neg, "cuda.neg", make_unary<Negative>);
  add_elementwise(library, Op::Abs, "cuda.abs", make_unary<Absolute>);
  add_elementwise(library, Op::Sign, "cuda.sign", make_unary<Sign>);
  add_elementwise(library, Op::Exp, "cuda.exp", make_floating_unary<Exponential>);
  add_elementwise(library, Op::Log, "cuda.log", make_floating_unary<Logarithm>);
  add_elementwise(library, Op::Sqrt, "cuda.sqrt", make_floating_unary<SquareRoot>);
  add_elementwise(library, Op::Rsqrt, "cuda.rsqrt", make_floating_unary<ReciprocalRoot>);
  add_elementwise(library, Op::Square, "cuda.square", make_unary<Squared>);
  add_cuda_comparison(library);
  add_cuda_cast(library);
  add_cuda_activation(library);
}

}  // namespace lockstep
