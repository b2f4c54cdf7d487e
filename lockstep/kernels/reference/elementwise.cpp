// Elementwise ops: one functor per op, one loop for all of them. The loop over a contiguous run of
// elements is inlined with its functor and vectorised. The iteration over runs knows neither the
// functor nor the dtype and calls the loop through a pointer, so it is compiled once and not
// hundreds of times. An output may overwrite an operand of the same shape, because an element is
// read before it is written.
#include <type_traits>

#include "lockstep/kernels/reference/floating.h"
#include "lockstep/kernels/reference/functions.h"
#include "lockstep/kernels/reference/reference.h"
#include "lockstep/kernels/reference/walk.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {
namespace {

// Loops over a run of elements of any dtype; a step is 1, or 0 for a broadcast operand.
using UnaryRun = void (*)(const std::byte* x, std::byte* y, std::int64_t n);
using BinaryRun = void (*)(const std::byte* a, std::int64_t a_step, const std::byte* b,
                           std::int64_t b_step, std::byte* y, std::int64_t n);

template <class T, class F>
void unary_run(const std::byte* x_bytes, std::byte* y_bytes, std::int64_t n) {
  constexpr F f;
  const T* x = reinterpret_cast<const T*>(x_bytes);
  auto* y = reinterpret_cast<decltype(f(T{}))*>(y_bytes);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = f(x[i]);
}

template <class T, class F>
void binary_run(const std::byte* a_bytes, std::int64_t a_step, const std::byte* b_bytes,
                std::int64_t b_step, std::byte* y_bytes, std::int64_t n) {
  constexpr F f;
  const T* a = reinterpret_cast<const T*>(a_bytes);
  const T* b = reinterpret_cast<const T*>(b_bytes);
  auto* y = reinterpret_cast<decltype(f(T{}, T{}))*>(y_bytes);
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

// Bytes per element of a kernel's input and of its output.
std::int64_t input_bytes(const KernelCall& call) {
  return static_cast<std::int64_t>(size_of(call.in_dtype(0)));
}
std::int64_t output_bytes(const KernelCall& call) {
  return static_cast<std::int64_t>(size_of(call.output(0).type.dtype));
}

std::unique_ptr<Kernel> binary(const KernelCall& call, BinaryRun run) {
  const Shape& shape = call.out_shape(0);
  const Walk<2> walk(shape, {broadcast_strides(call.in_shape(0), shape),
                             broadcast_strides(call.in_shape(1), shape)});
  return make_kernel(
      [walk, run, from = input_bytes(call), to = output_bytes(call)](const Binding& binding) {
        const std::byte* a = binding.inputs[0];
        const std::byte* b = binding.inputs[1];
        std::byte* y = binding.outputs[0];
        walk.run([&](std::int64_t at, std::int64_t n, const auto& offsets) {
          run(a + offsets[0] * from, walk.inner_step(0), b + offsets[1] * from, walk.inner_step(1),
              y + at * to, n);
        });
      });
}

std::unique_ptr<Kernel> unary(const KernelCall& call, UnaryRun run) {
  const std::int64_t elements = call.out_shape(0).elements();
  return make_kernel(
      [elements, run, from = input_bytes(call), to = output_bytes(call)](const Binding& binding) {
        const std::byte* x = binding.inputs[0];
        std::byte* y = binding.outputs[0];
        parallel_for(elements, kGrain, [&](std::int64_t begin, std::int64_t end) {
          run(x + begin * from, y + begin * to, end - begin);
        });
      });
}

// One maker per set of dtypes that an op accepts.

template <class F>
std::unique_ptr<Kernel> make_binary(const KernelCall& call) {
  return dispatch_wide(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>)
      fail<InternalError>("there is no arithmetic on bool");
    else
      return binary(call, binary_run<T, F>);
  });
}

template <class F>
std::unique_ptr<Kernel> make_floating_binary(const KernelCall& call) {
  return dispatch_wide(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>)
      return binary(call, binary_run<T, F>);
    else
      fail<InternalError>("{} is not floating-point", name_of(call.in_dtype(0)));
  });
}

template <class F>
std::unique_ptr<Kernel> make_comparison(const KernelCall& call) {
  return dispatch_wide(call.in_dtype(0),
                       [&](auto zero) { return binary(call, binary_run<decltype(zero), F>); });
}

template <class F>
std::unique_ptr<Kernel> make_logic(const KernelCall& call) {
  return binary(call, binary_run<bool, F>);
}

template <class F>
std::unique_ptr<Kernel> make_unary(const KernelCall& call) {
  return dispatch_wide(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool>)
      fail<InternalError>("there is no arithmetic on bool");
    else
      return unary(call, unary_run<T, F>);
  });
}

template <class F>
std::unique_ptr<Kernel> make_floating_unary(const KernelCall& call) {
  return dispatch_wide(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>)
      return unary(call, unary_run<T, F>);
    else
      fail<InternalError>("{} is not floating-point", name_of(call.in_dtype(0)));
  });
}

std::unique_ptr<Kernel> make_not(const KernelCall& call) {
  return unary(call, unary_run<bool, Not>);
}

template <class To>
struct Convert {
  template <class T>
  To operator()(T x) const {
    return convert<To>(x);
  }
};

std::unique_ptr<Kernel> make_cast(const KernelCall& call) {
  return dispatch(call.in_dtype(0), [&](auto from) {
    return dispatch(call.output(0).type.dtype, [&](auto to) {
      return unary(call, unary_run<decltype(from), Convert<decltype(to)>>);
    });
  });
}

using SelectRun = void (*)(const bool* condition, std::int64_t condition_step, const std::byte* a,
                           std::int64_t a_step, const std::byte* b, std::int64_t b_step,
                           std::byte* y, std::int64_t n);

template <class T>
void select_run(const bool* condition, std::int64_t condition_step, const std::byte* a_bytes,
                std::int64_t a_step, const std::byte* b_bytes, std::int64_t b_step,
                std::byte* y_bytes, std::int64_t n) {
  const T* a = reinterpret_cast<const T*>(a_bytes);
  const T* b = reinterpret_cast<const T*>(b_bytes);
  T* y = reinterpret_cast<T*>(y_bytes);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const T when = a[i * a_step];
    const T otherwise = b[i * b_step];
    y[i] = condition[i * condition_step] ? when : otherwise;
  }
}

std::unique_ptr<Kernel> make_select(const KernelCall& call) {
  const Shape& shape = call.out_shape(0);
  const Walk<3> walk(shape, {broadcast_strides(call.in_shape(0), shape),
                             broadcast_strides(call.in_shape(1), shape),
                             broadcast_strides(call.in_shape(2), shape)});
  const SelectRun run =
      dispatch(call.in_dtype(1), [](auto zero) -> SelectRun { return select_run<decltype(zero)>; });
  return make_kernel([walk, run, bytes = output_bytes(call)](const Binding& binding) {
    const bool* condition = binding.in<bool>(0);
    const std::byte* a = binding.inputs[1];
    const std::byte* b = binding.inputs[2];
    std::byte* y = binding.outputs[0];
    walk.run([&](std::int64_t at, std::int64_t n, const auto& offsets) {
      run(condition + offsets[0], walk.inner_step(0), a + offsets[1] * bytes, walk.inner_step(1),
          b + offsets[2] * bytes, walk.inner_step(2), y + at * bytes, n);
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
