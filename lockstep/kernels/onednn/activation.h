// Activations over f32 memory, vectorised; the formulas are in activations.h.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::onednn {

// The loops of one kind over n consecutive elements, on the calling thread. Inputs and outputs may
// be the same memory. alpha is the slope of leaky_relu; the others ignore it.
struct ActivationLoops {
  // y = f(x); null for linear.
  void (*value)(const float* x, float* y, std::int64_t n, float alpha) = nullptr;
  // y = f(y + bias).
  void (*biased)(float* y, const float* bias, std::int64_t n, float alpha) = nullptr;
  // dx = dy · f', from the output or the input, whichever the graph's activation_grad passes.
  void (*grad)(const float* dy, const float* operand, float* dx, std::int64_t n,
               float alpha) = nullptr;
};

// UsageError for an unknown name; "" and "linear" change nothing.
ActivationLoops activation_loops(std::string_view kind);

// Runs `value` on several threads.
void apply_in_parallel(const ActivationLoops& loops, const float* x, float* y, std::int64_t n,
                       float alpha);

}  // namespace lockstep::onednn
