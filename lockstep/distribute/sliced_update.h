// What ranks write where each of them has slices of gradients, parameters and slots: norms over all
// ranks, and updates whose rule needs norms of whole parameters.
#pragma once

#include <string>
#include <vector>

#include "lockstep/graph/graph.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/update.h"

namespace lockstep {

// The norm of everything that the ranks have, from the norm of what each has. It is finite on all
// ranks or on none, and overflows only where the norm of the whole would: the ranks exchange norms,
// not their squares.
Value norm_over_ranks(Value own, RankInGroup here, const CollectiveOptions& options);

// Whether an update needs norms of each parameter: lars, lamb, clip_norm.
bool needs_parameter_norms(const Attrs& update);

// An update of slices.
struct SlicedUpdate {
  UpdateInputs inputs;
  Attrs attrs;  // of the node: the rule, and its options
  // For the norms of gradients, and for those of trust ratios, where the rule needs them.
  CollectiveOptions gradient_norms = {};
  CollectiveOptions trust_norms = {};
};

// Writes it: as one node or, where the rule needs norms of whole parameters, one per parameter,
// with a rate and a scale of its own, after the ranks have added up the squares of their norms
// (to rounding, as if each had the whole parameters). The parameters' new values where the node is
// `of_slices`; otherwise none: the parameters are variables.
std::vector<Value> write_sliced_update(const SlicedUpdate& update);

}  // namespace lockstep
