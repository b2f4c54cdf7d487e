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
// The bias, where given, is (n). Attributes: transpose_a, transpose_b; activation and alpha only
// where there is one. Passes set, where both matrices have two axes and the backend offers it:
//   column_sums  b not transposed, nothing behind the product: a second output, (n), is the sums of
//                b's columns
//   bits         ReLU behind the product: a second output is its mask, a bit an element, in rows of
//                whole 128 bits: (m, 16 ⌈n / 128⌉) bytes, in an order that is the backend's own
//   masked       a third input is such a mask: where it has no bit, the result is zero
Value matmul(Value a, Value b, MatMulOptions options = {});
Value matmul(Value a, Value b, Value bias, MatMulOptions options = {});

}  // namespace lockstep
