#include "lockstep/graph/ops/state.h"

#include <array>

#include "lockstep/graph/ops/error_feedback.h"
#include "lockstep/graph/ops/placement_rules.h"
#include "lockstep/graph/ops/pointwise.h"
#include "lockstep/graph/ops/rules.h"

namespace lockstep {
namespace {

std::vector<ValueType> infer_assign(const OpCall& call) {
  require(call.inputs[0] == call.inputs[1], "the variable is {} and cannot take the value {}",
          call.inputs[0].str(), call.inputs[1].str());
  return {};
}

// A replicated variable takes what is the same on all ranks, a slice such a slice; a variable that
// is each rank's own takes what the rank has.
std::vector<Placement> place_assign(const PlaceCall& call) {
  const Placement& variable = call.inputs[0];
  const Placement& value = call.inputs[1];
  require(!value.is_flat() || variable.is_flat(), "{} cannot take a slice of a bucket",
          variable.str());
  require(variable.is_local() || variable == value,
          "the variable is {} and the value {} on axis {}: add it up over the ranks first "
          "(all_reduce), or make the variable Placement::local()",
          variable.str(), value.str(), call.axis);
  return {};
}

}  // namespace

void assign(const VariableRef& variable, Value value) {
  Graph& graph = value.graph();
  const Graph::NameScope scope(graph, graph.scope().empty() ? variable->name : "");
  const std::array<Value, 2> inputs{graph.variable(variable), value};
  graph.add(Op::Assign, inputs);
}

bool is_assignment(const Node& node) {
  return node.op == Op::Assign || node.op == Op::PointwiseAssign;
}

std::vector<ValueId> changed_variables(const Node& node) {
  std::vector<ValueId> ids;
  if (node.op == Op::Assign) ids.push_back(node.inputs[0]);
  if (node.op == Op::PointwiseAssign) {
    const PointwiseForm form = read_pointwise(node.attrs, node.inputs.size());
    for (std::size_t segment = 0; segment < form.count; ++segment) {
      for (const std::int64_t target : form.targets) {
        if (target >= 0) ids.push_back(node.inputs[form.input(segment, target)]);
      }
    }
  }
  if (node.op == Op::RoundGradients) {
    const std::size_t errors = kRoundScalars + node.outputs.size();
    ids.assign(node.inputs.begin() + static_cast<std::ptrdiff_t>(errors), node.inputs.end());
  }
  if (node.op == Op::Update) {
    const auto count = static_cast<std::size_t>(node.attrs.integer("count"));
    const bool by_slices = !node.outputs.empty();  // of parameters, which come out as values
    for (std::size_t i = by_slices ? 3 + count : 3; i < node.inputs.size(); ++i) {
      const bool gradient = i >= 3 + count && i < 3 + 2 * count;
      if (!gradient) ids.push_back(node.inputs[i]);
    }
  }
  return ids;
}

std::vector<OpDef> state_ops() {
  return {{.op = Op::Assign,
           .name = "assign",
           .infer = infer_assign,
           .effect = true,
           .place = place_assign}};
}

}  // namespace lockstep
