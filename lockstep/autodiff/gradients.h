// Reverse-mode differentiation: gradients are nodes.
#pragma once

#include <span>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// d(sum of loss's elements) / d(target), for each target, appended to the graph. A target that the
// loss does not depend on gets zeros. UsageError if there are no targets, or if a path leads
// through an op without a gradient. A gradient node is named after the node that it differentiates,
// plus ".grad".
std::vector<Value> gradients(Value loss, std::span<const Value> targets);

// Whether gradients() wrote a node, or a pass made it of such nodes: by its name.
inline bool is_gradient(const Node& node) {
  return node.name.find(".grad") != std::string::npos;
}

}  // namespace lockstep
