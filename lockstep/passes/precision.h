// Mixed precision: products and activations in 16 bits; variables, sums, losses and statistics in
// f32. The step is traced, differentiated and given its update in f32; then this pass rounds, op by
// op, according to each OpDef's PrecisionRule:
//
//   Half    (matmul, conv2d and their gradients) reads 16 bits
//   Follow  (activations, elementwise arithmetic, pooling, rearranging elements, dropout, batch and
//           layer norm, means, maxima) computes in 16 bits if all its computed inputs have 16 bits.
//           Variables, constants and what depends only on them do not count: they are rounded. The
//           parameters and statistics of norms stay in f32. If a constant is too large or too small
//           for the type, the op stays in f32.
//   Full    (sums, losses, softmax, exp, log, powers, all-reduces, the update) reads f32
//   Table   (gather) gives 16-bit rows of a table in f32; the gradient of the table is a sum
//
// A reduce_sum is Full because a sum of many numbers exceeds the range of f16 and the precision of
// bf16; a reduce_mean (global average pooling) or a maximum stays within the range of its inputs.
//
// Weights are rounded once per step, and gradients are widened as soon as they are computed, before
// they are added up. A value has one cast for all its readers and is never cast there and back: a
// node that reads in f32 what was only rounded for others gets the original. Inputs and outputs of
// the graph keep their types. A cast that the traced step contains stays as it is; one from f32 to
// f32 (full_precision) says that a value is to be f32.
#pragma once

#include <optional>
#include <string_view>

#include "lockstep/passes/pass.h"

namespace lockstep {

struct MixedPrecisionOptions {
  // Also rounds f32 inputs, as if they had been computed in 16 bits: for tests of single ops.
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
// "float32". UsageError, beginning with `caller` and listing the names, for any other.
std::optional<DType> precision_by_name(std::string_view caller, std::string_view name);

}  // namespace lockstep
