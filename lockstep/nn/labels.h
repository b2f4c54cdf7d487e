// How losses and metrics bring labels, predictions and sample weights to matching shapes.
#pragma once

#include <string_view>

#include "lockstep/graph/graph.h"

namespace lockstep {

// Labels with the predictions' dtype and shape. A last axis of extent 1 that only one of them has
// is added to or removed from the labels. UsageError, naming `what` and both shapes, if they still
// differ.
struct Aligned {
  Value labels;
  Value predictions;
};
Aligned align(std::string_view what, Value labels, Value predictions);

// Class numbers (…) for scores (…, C): labels (…, 1) lose their last axis; floats become i64, or
// -1, a label out of range, if they are not whole.
Value class_labels(std::string_view what, Value labels, Value scores);

// Weights that can multiply values (N, …): given as (N), (N, 1) or with more of the values' axes,
// returned in the values' dtype. UsageError if they do not match.
Value fit_weights(std::string_view what, Value weights, Value values);

// The mean over the last axis; a value with only one axis is returned as it is.
Value mean_over_features(Value x);

}  // namespace lockstep
