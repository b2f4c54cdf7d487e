// Random ops. The numbers drawn depend on the seed, the step, the sample's position in the global
// batch and the op, never on the replica or the thread.
#pragma once

#include "lockstep/graph/graph.h"

namespace lockstep {

// The name of the graph input that random ops read: i64 (2) = the step, and the position in the
// global batch of the first sample of this replica's piece. random_state adds it on first use.
inline constexpr const char* kRandomStateInput = "random_state";
Value random_state(Graph& graph);

struct DropoutOptions {
  double rate = 0.5;
  std::uint64_t seed = 0;  // the model's
  std::uint64_t key = 0;   // the layer's; two layers draw different numbers
};

// Zeroes elements with probability rate and scales the rest by 1 / (1 - rate). Axis 0 counts
// samples. Its gradient is the same op on dy: the mask is drawn again, not stored.
//
// Element e (row-major within its sample) of sample s at step t is dropped if
// to_unit_float(philox(make_key(seed, key), {e / 4, s, t low, t high})[e % 4]) < rate.
Value dropout(Value x, DropoutOptions options);

}  // namespace lockstep
