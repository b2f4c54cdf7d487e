#include "lockstep/distribute/rounding.h"

#include <set>

#include "lockstep/base/error.h"
#include "lockstep/distribute/bucket_list.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/error_feedback.h"
#include "lockstep/graph/ops/state.h"
#include "lockstep/graph/ops/update.h"

namespace lockstep {
namespace {

// The collectives of f32 scalars, communicated with gradients, that a value is computed from: the
// weight of the batch, of a scale.
std::set<const Node*> weights_behind(const Graph& graph, ValueId value) {
  std::set<const Node*> found;
  std::set<ValueId> seen;
  std::vector<ValueId> open{value};
  while (!open.empty()) {
    const ValueId id = open.back();
    open.pop_back();
    if (!seen.insert(id).second) continue;
    const Node& node = graph.producer(id);
    if (!is_bucket(node)) {
      open.insert(open.end(), node.inputs.begin(), node.inputs.end());
    } else if (is_aside(node) && graph.type(id) == ValueType{DType::F32, {}}) {
      found.insert(&node);
    }
  }
  return found;
}

}  // namespace

void expect_overflow_is_noticed(const Graph& graph, const RoundingOptions& options) {
  if (options.dtype != DType::F16) return;
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::Update) continue;
    require(
        node.attrs.has(kSkipsOverflow),
        "[{}] gradients above 65504 would become infinite in float16, and nothing would notice: "
        "give the optimizer a loss scale, which skips such steps "
        "(optimizer.with_loss_scale()), or communicate gradients in bfloat16",
        node.name);
  }
}

GradientRounding::GradientRounding(const Graph& source, const RoundingOptions& options, int ranks)
    : options_(options), ranks_(ranks) {
  if (!options.dtype) return;
  for (const Node& node : source.nodes()) {
    if (node.op == Op::Update && !is_accumulation(node)) find(source, node);
  }
}

void GradientRounding::find(const Graph& source, const Node& update) {
  const auto count = static_cast<std::size_t>(update.attrs.integer("count"));
  if (source.type(update.inputs[kUpdateScalars]).dtype != DType::F32) return;
  for (std::size_t i = 0; i < count; ++i) {
    const Node& list = source.producer(update.inputs[kUpdateScalars + count + i]);
    if (!is_bucket(list) || is_aside(list) || lists_.contains(&list)) continue;
    const std::set<const Node*> weights = weights_behind(source, update.inputs[1]);
    require(weights.size() == 1,
            "[{}] gradients are divided by {} weights that are all-reduced with them, so what "
            "rounding them to {} loses cannot be fed back: apply the optimizer as "
            "Optimizer::apply does, or communicate gradients in float32",
            update.name, weights.size(), name_of(*options_.dtype));
    const Node& weight = **weights.begin();
    lists_[&list] = {.weight = weight.inputs[0],
                     .weight_sum = weight.outputs[0],
                     .scale = update.inputs[1],
                     .first = source.producer(update.inputs[kUpdateScalars]).variable};
  }
}

BucketSizes GradientRounding::sizes(BucketSizes on_wire) const {
  if (!any()) return on_wire;
  const std::size_t times = sizeof(float) / size_of(*options_.dtype);
  return {.first_bytes = times * on_wire.first_bytes, .bytes = times * on_wire.bytes};
}

std::vector<Value> GradientRounding::round(Rewriter& rewriter, const Node& list,
                                           const std::vector<VariableRef>& parameters,
                                           const std::vector<Value>& gradients) const {
  if (options_.feedback == nullptr) {
    std::vector<Value> rounded;
    for (const Value& gradient : gradients) rounded.push_back(cast(gradient, *options_.dtype));
    return rounded;
  }
  const List& known = lists_.at(&list);
  Graph& target = rewriter.target();
  // Errors are parts of the mean gradient: the weight of all ranks is taken for as many times the
  // weight of this one. It is not known here yet, and need not be exact.
  RoundInputs inputs{.unit = rewriter.map(known.weight) * static_cast<double>(ranks_),
                     .keep = target.variable(options_.feedback->applied_of(known.first)),
                     .gradients = gradients,
                     .errors = {}};
  for (const VariableRef& parameter : parameters) {
    options_.feedback->update_with(parameter, known.first);
    inputs.errors.push_back(target.variable(options_.feedback->error_of(parameter)));
  }
  return round_gradients(inputs, *options_.dtype);
}

Value GradientRounding::widen(Value sum) {
  return cast(sum, DType::F32);
}

// A step with an empty batch is not applied either, but leaves errors as they are.
void GradientRounding::finish(Rewriter& rewriter) const {
  if (options_.feedback == nullptr) return;
  Graph& target = rewriter.target();
  std::set<VariableRef> noted;
  for (const auto& [list, known] : lists_) {
    const VariableRef& applied = options_.feedback->applied_of(known.first);
    if (!noted.insert(applied).second) continue;
    const Graph::NameScope scope(target, list->name);
    const Value none = target.scalar(0.0);
    const Value now = cast(not_equal(rewriter.map(known.scale), none), DType::F32);
    const Value some = greater(rewriter.map(known.weight_sum), none);
    assign(applied, select(some, now, target.variable(applied)));
  }
}

}  // namespace lockstep
