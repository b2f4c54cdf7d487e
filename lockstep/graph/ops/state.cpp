#include "lockstep/graph/ops/state.h"

#include <array>

#include "lockstep/graph/ops/rules.h"

namespace lockstep {
namespace {

std::vector<ValueType> infer_assign(const OpCall& call) {
  require(call.inputs[0] == call.inputs[1], "the variable is {} and cannot take the value {}",
          call.inputs[0].str(), call.inputs[1].str());
  return {};
}

}  // namespace

void assign(const VariableRef& variable, Value value) {
  Graph& graph = value.graph();
  const Graph::NameScope scope(graph, graph.scope().empty() ? variable->name : "");
  const std::array<Value, 2> inputs{graph.variable(variable), value};
  graph.add(Op::Assign, inputs);
}

std::vector<OpDef> state_ops() {
  return {{.op = Op::Assign, .name = "assign", .infer = infer_assign, .effect = true}};
}

}  // namespace lockstep
