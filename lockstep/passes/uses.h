// Uses: the readers of each value of a graph.
#pragma once

#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// The nodes that read each value; -1 stands for an output of the graph.
class Uses {
 public:
  explicit Uses(const Graph& graph) : readers_(static_cast<std::size_t>(graph.value_count())) {
    for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes().size()); ++n) {
      for (ValueId id : graph.node(n).inputs) readers_[static_cast<std::size_t>(id)].push_back(n);
    }
    for (const auto& [name, id] : graph.outputs()) {
      readers_[static_cast<std::size_t>(id)].push_back(-1);
    }
  }
  const std::vector<NodeId>& of(ValueId id) const { return readers_[static_cast<std::size_t>(id)]; }
  // The one node that reads a value, or -1.
  NodeId only(ValueId id) const { return of(id).size() == 1 ? of(id)[0] : -1; }

 private:
  std::vector<std::vector<NodeId>> readers_;
};

}  // namespace lockstep
