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
// where there is one; column_sums, which a pass sets where both matrices have two axes, b is not
// transposed and nothing follows: a second output, (n), is then the sums of b's columns.
Value matmul(Value a, Value b, MatMulOptions options = {});
Value matmul(Value a, Value b, Value bias, MatMulOptions options = {});

}  // namespace lockstep
