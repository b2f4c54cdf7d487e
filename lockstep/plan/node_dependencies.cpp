#include "lockstep/plan/node_dependencies.h"

#include <map>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/state.h"
#include "lockstep/plan/collective_order.h"

namespace lockstep {

NodeDependencies dependencies_of(const Graph& graph, std::span<const ValueId> roots,
                                 const SlicesInPlace& in_place) {
  const std::vector<Node>& nodes = graph.nodes();
  const int count = static_cast<int>(nodes.size());
  NodeDependencies all{.after = std::vector<std::vector<int>>(nodes.size()),
                       .waiting = std::vector<int>(nodes.size(), 0)};
  const auto edge = [&](int from, int to) {
    all.after[static_cast<std::size_t>(from)].push_back(to);
    ++all.waiting[static_cast<std::size_t>(to)];
  };
  std::map<ValueId, std::vector<int>> readers;  // by root
  for (int n = 0; n < count; ++n) {
    for (ValueId id : nodes[static_cast<std::size_t>(n)].inputs) {
      edge(graph.info(id).producer, n);
      readers[roots[static_cast<std::size_t>(id)]].push_back(n);
    }
  }
  for (const auto& [earlier, later] : collective_order(graph)) edge(earlier, later);
  for (const auto& [reader, changer] : in_place.before) edge(reader, changer);
  std::set<ValueId> changed;
  for (int n = 0; n < count; ++n) {
    const Node& node = nodes[static_cast<std::size_t>(n)];
    for (ValueId id : changed_variables(node)) {
      ensure(graph.producer(id).op == Op::Variable, "[plan] {} changes {}, which is no variable",
             node.name, graph.producer(id).name);
      require(changed.insert(id).second, "[plan] variable {} is changed by two nodes of a step",
              graph.producer(id).name);
      for (int reader : readers[id]) {
        if (reader != n) edge(reader, n);
      }
    }
  }
  return all;
}

}  // namespace lockstep
