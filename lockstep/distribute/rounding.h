// GradientRounding: which gradients of a graph are communicated in 16 bits, and the nodes that this
// takes. A gradient is rounded, with what rounding it lost in the step before
// (graph/ops/error_feedback.h), all-reduced in 16 bits (communicators add in f32 and round the sum
// once), and widened for the update. The weight of the batch and other scalars stay f32.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "lockstep/distribute/buckets.h"
#include "lockstep/distribute/error_feedback.h"
#include "lockstep/graph/graph.h"

namespace lockstep {

struct RoundingOptions {
  std::optional<DType> dtype = {};  // f16 or bf16; none: gradients are communicated as they are
  // Where errors are kept; null: rounding is not fed back, to see what that costs.
  ErrorFeedback* feedback = nullptr;
};

// UsageError if a step would not notice gradients that overflow the type.
void expect_overflow_is_noticed(const Graph& graph, const RoundingOptions& options);

class GradientRounding {
 public:
  GradientRounding(const Graph& source, const RoundingOptions& options, int ranks);

  // Whether there are gradients to round.
  bool any() const { return !lists_.empty(); }
  // Sizes of buckets are those on the wire; these are the bytes of the gradients before rounding.
  BucketSizes sizes(BucketSizes on_wire) const;
  // Whether a list's gradients of parameters are rounded.
  bool rounds(const Node& list) const { return lists_.contains(&list); }
  // The value, in the source, that must be known before they are.
  ValueId weight(const Node& list) const { return lists_.at(&list).weight; }

  // Of gradients of a list, in the target; `parameters` are theirs.
  std::vector<Value> round(Rewriter& rewriter, const Node& list,
                           const std::vector<VariableRef>& parameters,
                           const std::vector<Value>& gradients) const;
  static Value widen(Value sum);
  // When all else is written: notes whether the step was applied.
  void finish(Rewriter& rewriter) const;

 private:
  // What a step divides a list's gradients by, and whether it applies them.
  struct List {
    ValueId weight = -1;      // of this rank
    ValueId weight_sum = -1;  // of all
    ValueId scale = -1;       // of the update: 0 if it is skipped
    VariableRef first;        // parameter of the update
  };
  void find(const Graph& source, const Node& update);

  RoundingOptions options_;
  int ranks_;
  std::map<const Node*, List> lists_;
};

}  // namespace lockstep
