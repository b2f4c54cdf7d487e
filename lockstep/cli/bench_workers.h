// What lockstep bench needs to be one of several workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/runtime/world.h"
#include "lockstep/train/strategy.h"

namespace lockstep::cli {

// The chief's value, on all workers. Collective; with one worker it costs nothing.
std::int64_t agreed(World& world, std::int64_t value);

// One replica on the first device of this worker, which the other workers know nothing of.
struct AloneStrategy : Strategy {
  explicit AloneStrategy(const World& world);
};

// The cores of the replicas of all workers; none on GPUs.
struct JobCores {
  std::vector<std::vector<int>> by_replica;
  bool on_one_host = true;
  std::size_t count() const;
};
// Collective.
JobCores cores_of_job(World& world);

}  // namespace lockstep::cli
