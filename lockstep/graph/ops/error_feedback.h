// Rounding of gradients to 16 bits before ranks add them up, with error feedback (Seide et al.,
// "1-Bit Stochastic Gradient Descent", 2014): what rounding takes away from a gradient in one step
// is added to it in the next, so that small contributions are late but not lost.
#pragma once

#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// Per element, with gradient g, error e and rounded gradient q:
//
//   s = g + e · unit, or g if keep is 0
//   q = s rounded to 16 bits
//   e = (s - q) / unit, or 0 if that is not finite; e stays as it is if unit is 0
//
// `unit` and `keep` are f32 scalars. The unit is the weight that gradients are divided by later,
// with the loss scale: errors are then independent of both, and steps of different batch sizes or
// scales understand each other's. `keep` is 0 after a step that was skipped, whose errors may
// belong to gradients that were not finite.
struct RoundInputs {
  Value unit;
  Value keep;
  std::vector<Value> gradients;
  std::vector<Value> errors;  // variables, in f32 as the gradients; changed in place
};

// The rounded gradients. Node inputs in order: unit, keep, gradients…, errors….
std::vector<Value> round_gradients(const RoundInputs& inputs, DType dtype);

// Where the gradients and the errors begin among the inputs of such a node.
inline constexpr std::size_t kRoundScalars = 2;

}  // namespace lockstep
