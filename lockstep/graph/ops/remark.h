// Remarks: sentences for the user about a step, left in its graph by whoever traces it.
#pragma once

#include <string>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// The same value; its node carries the sentence. (A cast to the dtype it has, which mixed precision
// reads as full_precision and the dead code pass takes out.)
Value with_remark(Value x, std::string sentence);

// The sentences in a graph as it was traced, each once.
std::vector<std::string> remarks(const Graph& graph);

}  // namespace lockstep
