// Selections by structure: the layers that the user marked, or segments of the forward pass.
#pragma once

#include <vector>

#include "lockstep/passes/recompute_lifetimes.h"

namespace lockstep {

// All that is inside layers marked by checkpoint(layer), apart from what leaves them: only their
// inputs and outputs are kept. Empty if no layer is marked.
Selection marked_layers(const RecomputeAnalysis& analysis);

// Segments of the forward pass with equal memory each; only what is at their ends is kept, and the
// last one, whose values the backward pass reads at once, is not computed again (Chen et al., 2016,
// section 4). The forward pass can be cut wherever a single value is all that the rest of it reads,
// besides values that it reads nearly everywhere, such as a mask. One selection for each sensible
// number of segments; empty if there is no such place. Where n layers have equal memory, the number
// that needs least is about √n, and the memory grows like it.
std::vector<Selection> segment_selections(const RecomputeAnalysis& analysis);

}  // namespace lockstep
