// How losses and metrics bring labels, predictions and sample weights to shapes that fit.
#pragma once

#include <string_view>

#include "lockstep/graph/graph.h"

namespace lockstep {

// Labels with the predictions' dtype and shape: one is squeezed or stretched where the other has a
// last axis of 1 more. UsageError, naming `what` and both shapes, where that does not do.
struct Aligned {
  Value labels;
  Value predictions;
};
Aligned align(std::string_view what, Value labels, Value predictions);

// Class numbers (…) for scores (…, C): labels (…, 1) lose their last axis; floats become i64,
// and -1, a label out of range, where they are not whole.
Value class_labels(std::string_view what, Value labels, Value scores);

// Weights that can multiply values (N, …): (N), (N, 1), or of more axes of the values, as f32 or in
// the values' dtype. UsageError where they do not fit.
Value fit_weights(std::string_view what, Value weights, Value values);

// The mean over the last axis; what has no other axis is left alone.
Value mean_over_features(Value x);

}  // namespace lockstep
