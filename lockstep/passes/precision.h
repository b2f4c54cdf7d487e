// Mixed precision: products and activations in 16 bits; variables, sums, losses and statistics in
// f32. The step is traced, differentiated and given its update in f32; then this pass rounds, op by
// op, as each OpDef's PrecisionRule says:
//
//   Half    (matmul, conv2d and their gradients) reads 16 bits
//   Follow  (activations, elementwise arithmetic, pooling, moving elements about, dropout, batch
//   and
//           layer norm, means, maxima) computes in 16 bits where everything that was computed
//           before it comes in 16 bits. Variables, constants and what follows from them alone do
//           not count: they are rounded to fit. The parameters and statistics of norms stay in f32.
//           Where a constant is too large or too small for the type, the op stays in f32.
//   Full    (sums, losses, softmax, exp, log, powers, the sums over replicas, the update) reads f32
//   Table   (gather) gives 16-bit rows of a table in f32; the gradient of the table is a sum
//
// A reduce_sum is Full because a sum of many leaves the range of f16 and the steps of bf16; a
// reduce_mean (global average pooling) or a maximum of 16-bit numbers lies among them.
//
// Weights are rounded once a step and gradients widened as soon as they are there, before they are
// added up. A value has one cast, whoever reads it, and is never cast there and back: who reads in
// f32 what was only rounded for others gets what was there before. Inputs and outputs of the graph
// keep their types. A cast that the step has written itself stays as it is; one from f32 to f32
// (full_precision) says that a value is to be f32.
#pragma once

#include <optional>
#include <string_view>

#include "lockstep/passes/pass.h"

namespace lockstep {

struct MixedPrecisionOptions {
  // Rounds what is fed in f32, too, as if it had been computed in 16 bits: for tests of single ops.
  bool round_inputs = false;
};

class MixedPrecision final : public Pass {
 public:
  // In F16 or BF16.
  explicit MixedPrecision(DType dtype, MixedPrecisionOptions options = {});
  std::string_view name() const override { return "precision"; }
  void run(Graph& graph) override;

 private:
  DType dtype_;
  MixedPrecisionOptions options_;
};

// The 16-bit type of a precision by Keras's name: "mixed_float16", "mixed_bfloat16"; nothing for
// "float32". UsageError with the names, which `caller` begins, for any other.
std::optional<DType> precision_by_name(std::string_view caller, std::string_view name);

}  // namespace lockstep
