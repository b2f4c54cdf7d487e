// Activations as sweeps over f32 memory, vectorised; formulas: activations.h.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::onednn {

// The sweeps of one kind, over n neighbours, on the calling thread. What is read and what is
// written may be the same memory. alpha is leaky_relu's and ignored else.
struct ActivationSweeps {
  // y = f(x); null for the linear one.
  void (*value)(const float* x, float* y, std::int64_t n, float alpha) = nullptr;
  // y = f(y + bias).
  void (*biased)(float* y, const float* bias, std::int64_t n, float alpha) = nullptr;
  // dx = dy · f', from the output or the input as the graph's activation_grad has it.
  void (*grad)(const float* dy, const float* operand, float* dx, std::int64_t n,
               float alpha) = nullptr;
};

// UsageError for what is no activation; "" and "linear" change nothing.
ActivationSweeps activation_sweeps(std::string_view kind);

// The value sweep, in parallel.
void sweep_in_parallel(const ActivationSweeps& sweeps, const float* x, float* y, std::int64_t n,
                       float alpha);

}  // namespace lockstep::onednn
