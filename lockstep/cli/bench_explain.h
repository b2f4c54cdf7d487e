// What `lockstep bench --explain` adds: where the speed of several replicas went, and what was
// predicted for them from one alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/explain/explanation.h"
#include "lockstep/explain/measured_step.h"
#include "lockstep/explain/run_profile.h"
#include "lockstep/runtime/world.h"
#include "lockstep/train/history.h"

namespace lockstep::cli {

struct BenchedReplica {
  std::string device;
  int worker = 0;
  Attribution parts = {};  // of its worker's time
};

// What bench measured of one number of replicas.
struct BenchedReplicas {
  std::int64_t batch = 0;  // per replica
  std::int64_t steps = 0;
  double seconds = 0;
  double step_ms = 0;
  std::vector<BenchedReplica> by_replica = {};  // of all workers
  int workers = 1;
  std::string transport = {};                       // of several workers
  std::optional<LinkSpeed> link = {};               // an all-reduce of all, if it was measured
  std::vector<CollectiveProfile> collectives = {};  // of the step: names and bytes
};

// The replicas of every worker, from those of each. Collective; with one worker it costs nothing.
std::vector<BenchedReplica> of_all_workers(World& world, const std::vector<BenchedReplica>& mine);

// The collectives of a plan.
std::vector<CollectiveProfile> collectives_of(const Plan& plan);

// Exposed communication is measured as a whole; it is divided over the collectives of a step by
// what each takes on the measured link.
Explanation explain_bench(const BenchedReplicas& benched, const MeasuredStep& alone);

}  // namespace lockstep::cli
