// Reductions over some axes (empty: over all of them).
#pragma once

#include "lockstep/graph/graph.h"

namespace lockstep {

struct ReduceOptions {
  Ints axes = {};
  bool keepdims = false;
};

Value reduce_sum(Value x, ReduceOptions options = {});
Value reduce_mean(Value x, ReduceOptions options = {});
// The gradient goes to the largest elements, split equally if there are several.
Value reduce_max(Value x, ReduceOptions options = {});
// Index (i64) of the first largest element along an axis, which is removed. NaN is never the
// largest; if there is nothing but NaN, the index is 0.
Value argmax(Value x, int axis = -1);

// Sums x over the axes along which `shape` was broadcast to x's shape: the gradient of
// broadcasting.
Value sum_to(Value x, const Shape& shape);

}  // namespace lockstep
