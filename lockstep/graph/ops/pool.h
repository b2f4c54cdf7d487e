// Pooling over windows of (N, H, W, C) images.
#pragma once

#include <array>

#include "lockstep/graph/ops/conv.h"

namespace lockstep {

struct PoolOptions {
  std::array<std::int64_t, 2> window = {2, 2};
  std::array<std::int64_t, 2> strides = {2, 2};
  Padding padding = {0, 0, 0, 0};
};

// The largest element of each window; padding does not count. The node has two outputs: the result,
// and the argmax indices, which the gradient reads. An index is the position in the window (row *
// width + column) of its first largest element (u8, or i32 for windows of more than 255 elements).
//
// An extra that a backend may offer: batch_norm, where a batch norm with ReLU pools its own result
// (ops/norm.h), and the image between them is never written.
Value max_pool(Value x, PoolOptions options = {});
// The mean over each window; padding does not count.
Value avg_pool(Value x, PoolOptions options = {});

// The types of max_pool's outputs for an image, given the node's attributes.
std::vector<ValueType> max_pool_types(const ValueType& image, const Attrs& attrs);

}  // namespace lockstep
