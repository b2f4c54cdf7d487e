// Accumulate: makes a traced training step a step on one micro-batch of several. The micro-batches
// of a step run one after another; what each would have communicated for its update (gradients,
// weights, batch statistics) is added up in accumulators, and the last one communicates and
// updates.
//
// Two forms of the step are made from one trace:
//
//   Add   forward and backward pass; every value that goes into a list of all_reduce_gradients or
//         all_reduce_aside is added to its accumulator instead, as soon as it is computed. All that
//         follows from those lists (norms, the decision of the loss scale, updates, moving
//         averages) is left out.
//   Last  the whole step, whose lists get the sum of accumulator and own value. The all-reduce
//         overlaps the backward pass, as without accumulation.
//
// So a step of k micro-batches has the collectives of one, and its gradients are those of k
// replicas on the same pieces: batch norm's statistics are those of a micro-batch, and its moving
// averages are updated once, with their mean.
//
// Variables that a step changes without such a list: those that are each rank's own (metrics)
// change with every micro-batch; replicated ones change once, floats to the mean of what the
// micro-batches would have assigned (synchronised batch norm), others to what the last one does.
//
// The first micro-batch of a step replaces what accumulators hold (the input kAccumulatedInput), so
// that nothing of a step that failed midway is left.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/passes/pass.h"

namespace lockstep {

enum class MicroForm : std::uint8_t {
  Whole,  // a step that does not accumulate
  Add,
  Last,
};

// An f32 scalar of the form Add that the executor's owner fills: 0 for the first micro-batch of a
// step, 1 for others.
inline constexpr const char* kAccumulatedInput = "accumulated";

// The accumulators of one training step, in all its forms and for all sizes of micro-batches. What
// they hold is of no use once the step has ended.
class Accumulators {
 public:
  // The one for a gradient of a parameter, for the n-th value of a kind otherwise; made on first
  // use. UsageError if its type is not the one that it was made with.
  VariableRef of_gradient(const VariableRef& parameter, const ValueType& type);
  VariableRef of(const std::string& kind, std::size_t n, const ValueType& type,
                 const Placement& placement);
  // Whether a variable is an accumulator of any step.
  static bool is_one(const Variable& variable);

 private:
  std::map<VariableRef, VariableRef> of_parameter_;
  std::map<std::pair<std::string, std::size_t>, VariableRef> others_;
};

struct Accumulation {
  MicroForm form = MicroForm::Whole;
  Accumulators* accumulators = nullptr;  // not for Whole
  // Whether the step's floating-point outputs are sums, too: Add has no outputs then, and those of
  // Last are sums over all micro-batches. Otherwise both have their own.
  bool sum_outputs = true;
};

// UsageError if the step has no gradients to add up.
class AccumulatePass final : public Pass {
 public:
  explicit AccumulatePass(const Accumulation& options) : options_(options) {}
  std::string_view name() const override { return "accumulate"; }
  void run(Graph& graph) override;

 private:
  Accumulation options_;
};

}  // namespace lockstep
