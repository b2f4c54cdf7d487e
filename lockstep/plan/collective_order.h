// The order of collectives: all replicas must start those of a stream in the same order, that of
// their numbers, whatever else differs between their graphs.
#pragma once

#include <utility>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// Pairs of collectives of one stream of which the second is the next after the first.
std::vector<std::pair<NodeId, NodeId>> collective_order(const Graph& graph);

}  // namespace lockstep
