// Elementwise ops: one functor an op, one loop for all of them. The loop over a run of elements is
// inlined with its functor and vectorised; an output may lie where the operand of its own shape
// lies, for an element is read before it is written.
#include <type_traits>

#include "lockstep/kernels/reference/floating.h"
#include "lockstep/kernels/reference/functions.h"
#include "lockstep/kernels/reference/reference.h"
#include "lockstep/kernels/reference/walk.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {
namespace {

template <class T, class R, class F>
void apply(const T* x, R* y, std::int64_t n, F f) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = f(x[i]);
}

// A run of elements of a binary op; a step is 1, or 0 for an operand that stays the same.
template <class T, class R, class F>
void apply(const T* a, std::int64_t a_step, const T* b, std::int64_t b_step, R* y, std::int64_t n,
           F f) {
  if (a_step != 0 && b_step != 0) {
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(a[i], b[i]);
  } else if (a_step != 0) {
    const T same = *b;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(a[i], same);
  } else {
    const T same = *a;
#pragma omp simd
    for (std::int64_t i = 0; i < n; ++i) y[i] = f(same, b[i]);
  }
}

template <class T, class F>
std::unique_ptr<Kernel> binary(const KernelCall& call, F f) {
  const Shape& shape = call.out_shape(0);
  const Walk<2> walk(shape, {broadcast_strides(call.in_shape(0), shape),
                             broadcast_strides(call.in_shape(1), shape)});
  return make_kernel([walk, f](const Binding& binding) {
    using R = decltype(f(T{}, T{}));
    const T* a = binding.in<T>(0);
    const T* b = binding.in<T>(1);
    R* y = binding.out<R>(0);
    walk.run([&](std::int64_t at, std::int64_t n, const auto& offsets) {
      apply(a + offsets[0], walk.inner_step(0), b + offsets[1], walk.inner_step(1), y + at, n, f);
    });
  });
}

template <class T, class F>
std::unique_ptr<Kernel> unary(const KernelCall& call, F f) {
  const std::int64_t elements = call.out_shape(0).elements();
  return make_kernel([elements, f](const Binding& binding) {
    using R = decltype(f(T{}));
    const T* x = binding.in<T>(0);
    R* y = binding.out<R>(0);
    parallel_for(elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
      apply(x + begin, y + begin, end - begin, f);
    });
  });
}

// The makers: one for each set of dtypes that an op's shape rule allows.

template <class F>
std::unique_ptr<Kernel> make_binary(const KernelCall& call) {
  return dispatch_wide(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>)
      fail<InternalError>("arithmetic on bool");
    else
      return binary<T>(call, F());
  });
}

template <class F>
std::unique_ptr<Kernel> make_floating_binary(const KernelCall& call) {
  return dispatch_wide(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>)
      return binary<T>(call, F());
    else
      fail<InternalError>("{} is not floating-point", name_of(call.in_dtype(0)));
  });
}

template <class F>
std::unique_ptr<Kernel> make_comparison(const KernelCall& call) {
  return dispatch_wide(call.in_dtype(0),
                       [&](auto zero) { return binary<decltype(zero)>(call, F()); });
}

template <class F>
std::unique_ptr<Kernel> make_logic(const KernelCall& call) {
  return binary<bool>(call, F());
}

template <class F>
std::unique_ptr<Kernel> make_unary(const KernelCall& call) {
  return dispatch_wide(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>)
      fail<InternalError>("arithmetic on bool");
    else
      return unary<T>(call, F());
  });
}

template <class F>
std::unique_ptr<Kernel> make_floating_unary(const KernelCall& call) {
  return dispatch_wide(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>)
      return unary<T>(call, F());
    else
      fail<InternalError>("{} is not floating-point", name_of(call.in_dtype(0)));
  });
}

std::unique_ptr<Kernel> make_not(const KernelCall& call) {
  return unary<bool>(call, Not());
}

std::unique_ptr<Kernel> make_cast(const KernelCall& call) {
  return dispatch(call.in_dtype(0), [&](auto from) {
    return dispatch(call.output(0).type.dtype, [&](auto to) {
      using To = decltype(to);
      return unary<decltype(from)>(call, [](auto x) { return convert<To>(x); });
    });
  });
}

std::unique_ptr<Kernel> make_select(const KernelCall& call) {
  const Shape& shape = call.out_shape(0);
  const Walk<3> walk(shape, {broadcast_strides(call.in_shape(0), shape),
                             broadcast_strides(call.in_shape(1), shape),
                             broadcast_strides(call.in_shape(2), shape)});
  return dispatch(call.in_dtype(1), [&](auto zero) {
    using T = decltype(zero);
    return make_kernel([walk](const Binding& binding) {
      const bool* condition = binding.in<bool>(0);
      const T* a = binding.in<T>(1);
      const T* b = binding.in<T>(2);
      T* y = binding.out<T>(0);
      walk.run([&](std::int64_t at, std::int64_t n, const auto& offsets) {
        const bool* c_run = condition + offsets[0];
        const T* a_run = a + offsets[1];
        const T* b_run = b + offsets[2];
        T* y_run = y + at;
        const std::int64_t c_step = walk.inner_step(0);
        const std::int64_t a_step = walk.inner_step(1);
        const std::int64_t b_step = walk.inner_step(2);
#pragma omp simd
        for (std::int64_t i = 0; i < n; ++i) {
          const T when = a_run[i * a_step];
          const T otherwise = b_run[i * b_step];
          y_run[i] = c_run[i * c_step] ? when : otherwise;
        }
      });
    });
  });
}

}  // namespace

void add_reference_elementwise(KernelLibrary& library) {
  library.add(Op::Add, {.name = "reference.add", .make = make_binary<Plus>});
  library.add(Op::Sub, {.name = "reference.sub", .make = make_binary<Minus>});
  library.add(Op::Mul, {.name = "reference.mul", .make = make_binary<Times>});
  library.add(Op::Div, {.name = "reference.div", .make = make_floating_binary<Over>});
  library.add(Op::Pow, {.name = "reference.pow", .make = make_floating_binary<Power>});
  library.add(Op::Maximum, {.name = "reference.maximum", .make = make_binary<Larger>});
  library.add(Op::Minimum, {.name = "reference.minimum", .make = make_binary<Smaller>});
  library.add(Op::Equal, {.name = "reference.equal", .make = make_comparison<IsEqual>});
  library.add(Op::NotEqual, {.name = "reference.not_equal", .make = make_comparison<IsNotEqual>});
  library.add(Op::Less, {.name = "reference.less", .make = make_comparison<IsLess>});
  library.add(Op::LessEqual,
              {.name = "reference.less_equal", .make = make_comparison<IsLessEqual>});
  library.add(Op::Greater, {.name = "reference.greater", .make = make_comparison<IsGreater>});
  library.add(Op::GreaterEqual,
              {.name = "reference.greater_equal", .make = make_comparison<IsGreaterEqual>});
  library.add(Op::LogicalAnd, {.name = "reference.logical_and", .make = make_logic<Both>});
  library.add(Op::LogicalOr, {.name = "reference.logical_or", .make = make_logic<Any>});
  library.add(Op::LogicalNot, {.name = "reference.logical_not", .make = make_not});
  library.add(Op::Neg, {.name = "reference.neg", .make = make_unary<Negative>});
  library.add(Op::Abs, {.name = "reference.abs", .make = make_unary<Absolute>});
  library.add(Op::Sign, {.name = "reference.sign", .make = make_unary<Sign>});
  library.add(Op::Exp, {.name = "reference.exp", .make = make_floating_unary<Exponential>});
  library.add(Op::Log, {.name = "reference.log", .make = make_floating_unary<Logarithm>});
  library.add(Op::Sqrt, {.name = "reference.sqrt", .make = make_floating_unary<SquareRoot>});
  library.add(Op::Rsqrt, {.name = "reference.rsqrt", .make = make_floating_unary<ReciprocalRoot>});
  library.add(Op::Square, {.name = "reference.square", .make = make_unary<Squared>});
  library.add(Op::Cast, {.name = "reference.cast", .make = make_cast});
  library.add(Op::Select, {.name = "reference.select", .make = make_select});
}

}  // namespace lockstep
