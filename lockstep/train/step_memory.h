// What a planned training step needs of the memory of each device, whether it fits, and the fewest
// micro-batches with which it does. Nothing runs and nothing is allocated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/model_step.h"

namespace lockstep {

// What a replica would have on its device, and whether all that lies in the same memory fits: CPU
// devices share the machine's, logical devices of a GPU share the GPU's.
struct Resident {
  std::string device;
  PlanBytes bytes;
  std::size_t accumulator_bytes = 0;  // of its variables
  std::string memory;                 // "the machine", "cuda:0"
  std::size_t memory_bytes = 0;
  std::size_t needed_bytes = 0;  // of that memory, by all replicas of this process
  bool fits = true;
};
// By local rank. `limit`: instead of the memory that there is.
std::vector<Resident> residents(const World& world, const StepPlans& plans,
                                std::optional<std::size_t> limit = {});

// The samples of the largest one, at least 1.
std::int64_t largest_piece(std::span<const Piece> pieces);

// Memory that is left to libraries and the rest of the process where a step is made to fit, as a
// fraction of all.
inline constexpr double kMemoryHeadroom = 1.0 / 16;

struct FittingOptions {
  // Bytes that replicas of this process may take of one memory; none: what there is, less the
  // headroom.
  std::optional<std::size_t> limit = {};
  const char* caller = "fit";
};
// The most samples that a micro-batch of a replica may have so that training on these pieces fits
// on all workers: all of the largest piece, or fewer. MemoryError, with the figures, if even one is
// too many. Collective.
std::int64_t largest_micro_batch(Session& session, const StepRecipe& recipe, const ModelStep& step,
                                 std::span<const Piece> pieces, const FittingOptions& options = {});
// How many micro-batches the pieces are then divided into.
std::int64_t micro_batches_of(std::span<const Piece> pieces, std::int64_t micro_batch);

}  // namespace lockstep
