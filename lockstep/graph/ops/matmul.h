// Matrix products.
#pragma once

#include <string>

#include "lockstep/graph/graph.h"

namespace lockstep {

struct MatMulOptions {
  bool transpose_a = false;
  bool transpose_b = false;
  std::string activation = "";  // fused: applied after the bias; see ops/elementwise.h
  double alpha = 0.2;
};

// (…, m, k) × (…, k, n) → (…, m, n); leading axes are equal, or absent on b (one matrix for all).
// The bias, if any, is (n). Attributes: transpose_a, transpose_b; activation and alpha only if
// there is one. If both matrices have two axes and the backend offers it, passes set:
//   column_sums  b not transposed, no bias or activation: a second output, (n), holds the sums of
//                b's columns
//   bits         ReLU after the product: a second output is its mask, one bit per element, in rows
//                of whole 128 bits: (m, 16 ⌈n / 128⌉) bytes, in the backend's own order
//   masked       a third input is such a mask: where its bit is not set, the result is zero
//   accumulates  no bias or activation: a third input of the result's type is added to the result,
//                which may be computed in its memory. A fourth, an f32 scalar, says whether: if it
//                is 0, nothing is added, whatever the third input holds
Value matmul(Value a, Value b, MatMulOptions options = {});
Value matmul(Value a, Value b, Value bias, MatMulOptions options = {});

inline constexpr const char* kAccumulates = "accumulates";
// Whether a node is a product that adds to its third input.
bool accumulates(const Node& node);

}  // namespace lockstep
