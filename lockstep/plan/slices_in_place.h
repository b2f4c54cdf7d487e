// Values that need no memory of their own.
//
// Slices that ranks update lie where the whole is.
// A reduce_scatter whose inputs nobody else reads leaves its slices where they were added up.
// Slices that are cut out of parameters, updated, gathered and assigned to the same parameters are
// updated in the parameters' memory, and gathered there.
//
// A product that is added to a variable and assigned to it is computed in its memory, if nothing
// else reads what the variable held.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

struct SlicesInPlace {
  struct Part {
    ValueId whole = -1;
    std::size_t begin = 0;  // bytes, in the whole
  };
  std::map<ValueId, Part> parts;
  // Nodes that read parameters before others change slices of them: the first of each pair runs
  // before the second.
  std::vector<std::pair<NodeId, NodeId>> before;
  // all_gathers into the memory of variables, which is contiguous (State::add).
  std::set<NodeId> gathers;
};

SlicesInPlace find_slices_in_place(const Graph& graph);

// The variables that an all_gather's results are assigned to, in its order; empty if a result is
// read by anything else, or a variable has another layout.
std::vector<ValueId> gathered_variables(const Graph& graph, const Node& gather);

}  // namespace lockstep
