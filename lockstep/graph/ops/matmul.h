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
// where there is one.
Value matmul(Value a, Value b, MatMulOptions options = {});
Value matmul(Value a, Value b, Value bias, MatMulOptions options = {});

}  // namespace lockstep
