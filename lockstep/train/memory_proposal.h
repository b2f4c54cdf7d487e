// What would make a training step fit into memory, from plans alone: combinations of accumulation,
// recomputation, sharding and offloading, each with the memory that it needs and the time that a
// step would take. Only a short measurement of the device's rates is run, never the step.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>

#include "lockstep/explain/memory_choice.h"
#include "lockstep/train/model_step.h"

namespace lockstep {

struct MemoryProposal {
  MemoryChoice choice;
  std::size_t memory = 0;  // that it was to fit into
  std::string of;          // whose: "the machine", "cuda:0"
};

// `recipe` says what was asked for; what is not at its default there stays as it is. `limit`:
// bytes that all replicas of a process may take of one memory; none: what there is, less the
// headroom of step_memory.h. Collective: all workers get the same proposal, for the one with least
// room.
MemoryProposal propose_memory(const std::shared_ptr<World>& world, const StepRecipe& recipe,
                              const ModelStep& step, std::span<const Piece> pieces,
                              std::optional<std::size_t> limit = {});

// "--accumulate 4 --recompute blocks would fit (3.1 of 4.0 GiB, about 1.3 times the time)", or that
// nothing would, and what comes nearest.
std::string sentence_of(const MemoryProposal& proposal);

}  // namespace lockstep
