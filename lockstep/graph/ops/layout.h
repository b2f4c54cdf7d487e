// The op that the layout pass inserts.
#pragma once

#include "lockstep/graph/graph.h"

namespace lockstep {

// The same elements in another layout; the output's ValueInfo holds it.
Value reorder(Value x, const Layout& layout);

}  // namespace lockstep
