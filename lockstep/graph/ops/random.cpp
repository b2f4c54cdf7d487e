#include "lockstep/graph/ops/random.h"

#include "lockstep/graph/ops/placement_rules.h"
#include "lockstep/graph/ops/rules.h"

namespace lockstep {
namespace {

std::vector<ValueType> infer_dropout(const OpCall& call) {
  require_floating(call, 0, "the input");
  require(call.shape(0).rank() >= 1, "the input needs an axis of samples, but is a scalar");
  require_type(call, 1, {DType::I64, {2}}, "the random state");
  return {call.inputs[0]};
}

// Draws the same mask again for the gradient.
std::vector<Value> gradient_dropout(const GradCall& call) {
  std::vector<Value> grads(2);
  grads[0] = call.graph.add1(Op::Dropout, {call.grads[0], call.inputs[1]}, call.attrs);
  return grads;
}

// The random state says where in the global batch this rank's samples are, so that a mask is drawn
// for a sample, whatever rank has it. What is the same on all ranks gets another mask on each.
std::vector<Placement> place_dropout(const PlaceCall& call) {
  return place_images(call, {.statistics = {1}});
}

}  // namespace

Value random_state(Graph& graph) {
  for (const auto& [name, id] : graph.inputs()) {
    if (name == kRandomStateInput) return {&graph, id};
  }
  return graph.input(kRandomStateInput, {DType::I64, {2}});
}

Value dropout(Value x, DropoutOptions options) {
  require(options.rate >= 0 && options.rate < 1,
          "[dropout] {}: the rate must be at least 0 and less than 1, not {}", x.graph().scope(),
          options.rate);
  if (options.rate == 0) return x;
  return x.graph().add1(Op::Dropout, {x, random_state(x.graph())},
                        {{"rate", options.rate},
                         {"seed", static_cast<std::int64_t>(options.seed)},
                         {"key", static_cast<std::int64_t>(options.key)}});
}

std::vector<OpDef> random_ops() {
  return {{.op = Op::Dropout,
           .name = "dropout",
           .precision = PrecisionRule::Follow,
           .infer = infer_dropout,
           .gradient = gradient_dropout,
           .cost = cost_per_element<25>,
           .in_place = {{0, 0}},
           .place = place_dropout}};
}

}  // namespace lockstep
