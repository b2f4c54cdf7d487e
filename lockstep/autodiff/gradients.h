// Reverse-mode differentiation: gradients are nodes.
#pragma once

#include <span>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

// d(sum of loss's elements) / d(target), for each target, added to the graph behind what is there.
// A target that the loss does not depend on gets zeros. UsageError where there are no targets, or
// the path leads through an op that has no gradient. Gradient nodes carry the name of the node they
// differentiate + ".grad".
std::vector<Value> gradients(Value loss, std::span<const Value> targets);

}  // namespace lockstep
