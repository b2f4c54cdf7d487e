// The selections among which a budget chooses.
//
// Each is found greedily, as Dynamic Tensor Rematerialization does at run time (Kirisame et al.,
// 2021), but ahead of it, on the step's lifetimes: at the moment at which most memory is live, the
// value is given up that frees most bytes for the work of computing it again, with all that it
// needs and that is not there any more; then lifetimes follow anew. What is cheap and local goes
// first (normalisation and activations, whose inputs are kept), convolutions and products later. A
// value is only given up if the backward pass needs it after that moment, so that segments that are
// computed again while much is live stay short, and a choice that would raise the peak elsewhere is
// not made. As in DTR, the work of neighbours that are already given up counts too, by several
// weights: with it, chains are given up in places that are spread evenly, and √n of n values
// remain; without it, what is cheap goes first.
//
// Segments (recompute_segments.h) are selections like others. They need least memory, and most
// work: from them a second search goes back, and keeps the nodes with most work per byte as memory
// allows. The list does not depend on a budget, and a budget takes the first, by work, that fits:
// more budget never costs more work, and less never takes more memory, whatever the planner makes
// of a selection.
#pragma once

#include <vector>

#include "lockstep/passes/recompute_lifetimes.h"

namespace lockstep {

struct RecomputePoint {
  Selection selection;
  double work = 0;             // of all copies
  std::size_t live_bytes = 0;  // at the peak, by lifetimes
};

// In the order of work, from none; each needs less than all before it, by lifetimes.
std::vector<RecomputePoint> recompute_points(const RecomputeAnalysis& analysis);

}  // namespace lockstep
