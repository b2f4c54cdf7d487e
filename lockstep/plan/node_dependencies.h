// Which nodes of a graph must run before which others: those that compute what they read, those
// that read a variable before it is changed, and collectives in the order that the ranks agreed on.
#pragma once

#include <span>
#include <vector>

#include "lockstep/graph/graph.h"
#include "lockstep/plan/slices_in_place.h"

namespace lockstep {

struct NodeDependencies {
  std::vector<std::vector<int>> after;  // by node, those that wait for it
  std::vector<int> waiting;             // by node, how many it waits for
};

// `roots`: by value, the one whose memory it refers to. UsageError if two nodes change a variable.
NodeDependencies dependencies_of(const Graph& graph, std::span<const ValueId> roots,
                                 const SlicesInPlace& in_place);

}  // namespace lockstep
