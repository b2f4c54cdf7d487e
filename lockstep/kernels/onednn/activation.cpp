#include "lockstep/kernels/onednn/activation.h"

#include <type_traits>

#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/activations.h"
#include "lockstep/kernels/vector_math.h"

namespace lockstep::onednn {
namespace {

constexpr std::int64_t kGrain = 16 * 1024;  // elements

template <class A>
LOCKSTEP_INLINE A with_alpha(float alpha) {
  if constexpr (std::is_same_v<A, LeakyRelu>) return {static_cast<double>(alpha)};
  static_cast<void>(alpha);
  return {};
}

template <class A>
LOCKSTEP_VECTORIZED void value_loop(const float* x, float* y, std::int64_t n, float alpha) {
  const A f = with_alpha<A>(alpha);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = f.value(x[i]);
}

template <class A>
LOCKSTEP_VECTORIZED void biased_loop(float* y, const float* bias, std::int64_t n, float alpha) {
  const A f = with_alpha<A>(alpha);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) y[i] = f.value(y[i] + bias[i]);
}

template <class A>
LOCKSTEP_VECTORIZED void grad_loop(const float* dy, const float* operand, float* dx, std::int64_t n,
                                   float alpha) {
  const A f = with_alpha<A>(alpha);
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) dx[i] = f.grad(dy[i], operand[i]);
}

}  // namespace

ActivationLoops activation_loops(std::string_view kind) {
  if (kind.empty() || kind == "linear") return {.biased = biased_loop<Linear>};
  return with_activation<VectorMath>(kind, 0.0, [](auto activation) -> ActivationLoops {
    using A = decltype(activation);
    return {value_loop<A>, biased_loop<A>, grad_loop<A>};
  });
}

void apply_in_parallel(const ActivationLoops& loops, const float* x, float* y, std::int64_t n,
                       float alpha) {
  parallel_for(n, kGrain, [&](std::int64_t begin, std::int64_t end) {
    loops.value(x + begin, y + begin, end - begin, alpha);
  });
}

}  // namespace lockstep::onednn
