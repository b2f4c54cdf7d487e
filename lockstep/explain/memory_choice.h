// choose_memory: which combination of accumulation, recomputation, sharding and offloading makes a
// step fit into a device's memory, and is the fastest of those that do. It asks for plans, and runs
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/passes/memory_options.h"

namespace lockstep {

// One combination, as it was planned.
struct MemoryCandidate {
  MemoryOptions options;
  std::size_t bytes = 0;  // on the device that needs most
  double seconds = 0;     // of a step, predicted
  bool fits = false;
};

struct MemoryChoice {
  // Those that fit first, the fastest of them at the front; then the others, the smallest first.
  std::vector<MemoryCandidate> candidates;

  // Null if nothing fits.
  const MemoryCandidate* best() const {
    return candidates.empty() || !candidates.front().fits ? nullptr : &candidates.front();
  }
};

struct MemorySearch {
  MemoryOptions asked = {};      // what is not at its default stays as it is
  int ranks = 1;                 // sharding needs several
  std::int64_t samples = 1;      // of a rank's piece: the most micro-batches
  std::size_t memory = 0;        // bytes of the device
  bool separate_memory = false;  // the device has memory of its own: offloading helps
};

// Plans a step with these options: bytes and seconds. UsageError where the options cannot be
// followed, such as a budget that cannot be met: the combination is then left out.
using PlanMemoryOf = std::function<MemoryCandidate(const MemoryOptions&)>;

// For each way to recompute, shard and offload, the fewest micro-batches that fit, by doubling:
// more of them are slower. What needs more work than a combination that fits with as many
// micro-batches is not tried.
MemoryChoice choose_memory(const MemorySearch& search, const PlanMemoryOf& plan);

// "--accumulate 4 --recompute blocks --shard 2": the flags of what is not at its default; "" if all
// are.
std::string flags_of(const MemoryOptions& options);
// The same in words: "accumulate 4, recompute blocks"; "nothing" if all are at their defaults.
std::string words_of(const MemoryOptions& options);

}  // namespace lockstep
