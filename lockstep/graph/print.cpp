#include <fmt/format.h>

#include "lockstep/graph/graph.h"
#include "lockstep/graph/op_def.h"

namespace lockstep {

std::string print(const Graph& graph) {
  std::string text;
  for (const Node& node : graph.nodes()) {
    std::vector<std::string> outputs;
    for (ValueId id : node.outputs) {
      const ValueInfo& value = graph.info(id);
      const std::string layout = value.layout.row_major() ? "" : ":" + value.layout.str();
      const std::string placement = value.placement.str();
      outputs.push_back(fmt::format("%{} {}{}{}{}", id, value.type.str(), layout,
                                    placement.empty() ? "" : " ", placement));
    }
    text += fmt::format("{}{}{}({}{}){}", fmt::join(outputs, ", "), outputs.empty() ? "" : " = ",
                        op_def(node.op).name, node.inputs.empty() ? "" : "%",
                        fmt::join(node.inputs, ", %"), node.attrs.str());
    text += node.name.empty() ? "\n" : fmt::format("  # {}\n", node.name);
  }
  for (const auto& [name, id] : graph.outputs()) text += fmt::format("output {} = %{}\n", name, id);
  return text;
}

}  // namespace lockstep
