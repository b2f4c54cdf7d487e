// Replay: the timeline of one replica's step, for simulate.cpp.
#pragma once

#include <vector>

#include "lockstep/explain/simulate.h"

namespace lockstep {

// What the instructions of a step take in a scenario, for a replica of median speed.
struct ReplayCosts {
  bool on_thread = false;       // a CPU: see simulate.h
  std::vector<double> compute;  // by instruction; 0 for collectives
  std::vector<CollectiveSeconds> collective;
  std::vector<double> share;  // of the compute stream's speed that is lost while it communicates
  double host = 0;
};
ReplayCosts replay_costs(const MeasuredStep& step, const Scenario& scenario);

struct Replay {
  std::vector<TimelineEvent> events;
  double end = 0;
};

// `arrivals`: for each collective, by instruction, the time before which it cannot begin because
// another replica has not come; empty: the others are no slower.
Replay replay(const MeasuredStep& step, const ReplayCosts& costs, double factor,
              const std::vector<double>& arrivals = {});

}  // namespace lockstep
