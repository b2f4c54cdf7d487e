#include <set>

#include "lockstep/base/error.h"
#include "lockstep/graph/graph.h"
#include "lockstep/graph/op_def.h"

namespace lockstep {

void verify(const Graph& graph) {
  std::set<ValueId> defined;
  std::set<const Variable*> variables;
  for (const Node& node : graph.nodes()) {
    const OpDef& def = op_def(node.op);
    std::vector<ValueType> types;
    for (ValueId input : node.inputs) {
      ensure(defined.contains(input), "[verify] {} {} reads value {} before it is defined",
             def.name, node.name, input);
      types.push_back(graph.type(input));
    }
    if (node.op == Op::Variable) {
      ensure(variables.insert(node.variable.get()).second, "[verify] variable {} has two nodes",
             node.name);
    }
    if (def.infer != nullptr) {
      const std::vector<ValueType> expected = def.infer({types, node.attrs});
      ensure(expected.size() == node.outputs.size(), "[verify] {} {} has {} outputs, not {}",
             def.name, node.name, node.outputs.size(), expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        ensure(expected[i] == graph.type(node.outputs[i]),
               "[verify] {} {}: output {} is {}, not {}", def.name, node.name, i,
               graph.type(node.outputs[i]).str(), expected[i].str());
      }
    }
    for (ValueId output : node.outputs) {
      ensure(defined.insert(output).second, "[verify] value {} is defined twice", output);
    }
  }
  for (const auto& [name, id] : graph.outputs()) {
    ensure(defined.contains(id), "[verify] output {} is never defined", name);
  }
}

}  // namespace lockstep
