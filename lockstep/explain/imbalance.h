// Imbalance: which replicas were slower than the others, over stretches of a run.
//
// Steps vary: of two replicas that are equally fast, one is last in every step. So single steps say
// nothing. A replica counts as slow in a stretch if, on average over its windows, it was busy for
// longer than the others by more than chance explains (three standard errors) and by more than a
// fiftieth.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/explain/run_profile.h"

namespace lockstep {

// Means per step. Busy is what a replica does between two meetings: computing, and waiting for its
// input.
struct RunStretch {
  std::int64_t first = 0;  // step
  double steps = 0;
  double compute_s = 0;                // the mean of all replicas
  double input_s = 0;                  // likewise
  double usual_compute_s = 0;          // the mean of those that were not slow
  double usual_input_s = 0;            // likewise
  double late_s = 0;                   // what the slow ones made every step longer
  double idle_s = 0;                   // that even the last replica waited, beyond what steps vary
  std::vector<std::size_t> slow = {};  // replicas; empty: none
};
std::vector<RunStretch> stretches_of(const RunProfile& profile);

// The replica that all others waited for, if one was slower than the rest in much of the run.
struct SlowReplica {
  int replica = 0;
  std::int64_t since = 0;  // step
  double times = 1;        // as long as the others
  double seconds = 0;      // lost over the run
  enum class Why { Device, Work, Input } why = Why::Device;
};
std::optional<SlowReplica> slow_replica(const RunProfile& profile);

}  // namespace lockstep
