// What a job does when a worker has failed, and whether whatever started it can do that.
#pragma once

#include <optional>

#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/cluster/environment.h"
#include "lockstep/comm/membership.h"
#include "lockstep/comm/worker_links.h"

namespace lockstep {

// The policy that was asked for, else that of LOCKSTEP_ON_FAILURE (stop, restart or shrink), else
// Stop. UsageError, naming what is possible, where the launcher or the transport cannot do it.
OnFailure failure_policy(const ClusterSpec& spec, std::optional<OnFailure> asked,
                         Transport transport,
                         const Environment& environment = process_environment());

}  // namespace lockstep
