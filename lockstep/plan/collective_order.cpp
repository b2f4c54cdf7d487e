#include "lockstep/plan/collective_order.h"

#include <map>

#include "lockstep/graph/ops/collective.h"

namespace lockstep {

std::vector<std::pair<NodeId, NodeId>> collective_order(const Graph& graph) {
  std::map<std::pair<bool, std::int64_t>, NodeId> numbered;
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes().size()); ++n) {
    const Node& node = graph.node(n);
    if (!is_collective(node) || !node.attrs.has("order")) continue;
    numbered[{is_bucket(node), node.attrs.integer("order")}] = n;
  }
  std::vector<std::pair<NodeId, NodeId>> order;
  for (auto next = numbered.begin(), last = next; next != numbered.end(); last = next++) {
    if (next != last && next->first.first == last->first.first) {
      order.emplace_back(last->second, next->second);
    }
  }
  return order;
}

}  // namespace lockstep
