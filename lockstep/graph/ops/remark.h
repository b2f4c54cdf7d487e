// Remarks: sentences for the user about a step, left in its graph by the code that traces it.
#pragma once

#include <string>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// The same value, from a node with the sentence. (A cast to the dtype that it already has, which
// mixed precision treats as full_precision and the dead code pass removes.)
Value with_remark(Value x, std::string sentence);

// The sentences in a graph as it was traced, each once.
std::vector<std::string> remarks(const Graph& graph);

}  // namespace lockstep
