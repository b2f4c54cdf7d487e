#include "lockstep/passes/dead_code.h"

#include <algorithm>

#include "lockstep/graph/op_def.h"

namespace lockstep {

void DeadCode::run(Graph& graph) {
  std::vector<bool> read(static_cast<std::size_t>(graph.value_count()), false);
  for (const auto& [name, id] : graph.outputs()) read[static_cast<std::size_t>(id)] = true;
  const std::vector<Node>& nodes = graph.nodes();
  std::vector<bool> keep(nodes.size(), false);
  for (std::size_t i = nodes.size(); i-- > 0;) {
    const Node& node = nodes[i];
    keep[i] = node.op == Op::Input || op_def(node.op).effect ||
              std::any_of(node.outputs.begin(), node.outputs.end(),
                          [&](ValueId id) { return read[static_cast<std::size_t>(id)]; });
    if (!keep[i]) continue;
    for (ValueId id : node.inputs) read[static_cast<std::size_t>(id)] = true;
  }
  Rewriter rewriter(graph);
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!keep[i]) continue;
    const Node& node = nodes[i];
    const bool idle =
        node.op == Op::Cast && graph.type(node.inputs[0]) == graph.type(node.outputs[0]);
    if (idle) {
      rewriter.set(node.outputs[0], rewriter.map(node.inputs[0]));
    } else {
      rewriter.copy(node);
    }
  }
  graph = rewriter.finish();
}

}  // namespace lockstep
