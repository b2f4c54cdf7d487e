// Why a run was not as fast as its devices could be: divides its time into what one device would
// have needed for the same samples, over the number of replicas, and what was lost. The parts add
// up to the whole.
#pragma once

#include <optional>
#include <string>

#include "lockstep/explain/imbalance.h"
#include "lockstep/explain/measured_step.h"
#include "lockstep/explain/run_profile.h"

namespace lockstep {

// How long a device alone takes to compute the step of one of so many ranks, and the host to start
// it.
struct AloneTime {
  PerPiece compute_s;
  PerPiece host_s;
};
AloneTime alone_time(const MeasuredStep& step, int ranks);

// Without a measured step, computation is taken for what one device would need: small pieces and
// contention are then not told from it.
Explanation explain(const RunProfile& profile, const MeasuredStep* alone = nullptr);

// What an all-reduce of the run costs: as measured at its start or, if it was not, a line through
// the sizes and times of its collectives; nothing if there are too few sizes to tell.
std::optional<LinkFit> link_of(const RunProfile& profile);

}  // namespace lockstep
