// How the names of nodes say what recomputation (passes/recompute.h) needs to know: which nodes
// belong to a layer that the user marked, and which compute a value for the second time. Names
// survive every pass, and no kernel depends on them: a node that is computed again has the same
// op, attributes, types and layouts, and therefore the same bits.
#pragma once

#include <string_view>

#include "lockstep/graph/graph.h"

namespace lockstep {

// The scope inside a layer that checkpoint(layer) marked: "block_1/@checkpoint/conv2d".
inline constexpr std::string_view kCheckpointScope = "@checkpoint";

// The name up to the outermost marked layer, "block_1/@checkpoint"; "" if no layer around the node
// is marked.
inline std::string_view checkpoint_of(std::string_view name) {
  const std::size_t begin = name.find(kCheckpointScope);
  return begin == std::string_view::npos ? std::string_view()
                                         : name.substr(0, begin + kCheckpointScope.size());
}

// The end of the name of a node that computes again what an earlier node has computed.
inline constexpr std::string_view kAgain = ".again";

inline bool is_recomputed(const Node& node) {
  return node.name.ends_with(kAgain);
}

}  // namespace lockstep
