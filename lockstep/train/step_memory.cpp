#include "lockstep/train/step_memory.h"

#include <algorithm>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/device/device_memory.h"
#include "lockstep/device/memory_error.h"

namespace lockstep {
namespace {

// The steps of a search for a number of micro-batches, which all workers make alike.
class MicroBatchSearch {
 public:
  MicroBatchSearch(Session& session, const StepRecipe& recipe, const ModelStep& step,
                   std::span<const Piece> pieces, const FittingOptions& options)
      : session_(session), recipe_(recipe), step_(step), pieces_(pieces), options_(options) {}

  // Whether the step fits on all workers.
  bool fits(std::int64_t micro_batches) {
    const StepRequest request =
        request_step(session_.world(), recipe_.optimizer, step_, pieces_, micro_batches);
    bool all = true;
    try {
      found_ = residents(session_.world(), plan_step(session_, recipe_, request), options_.limit);
      for (const Resident& each : found_) all = all && fits(each);
    } catch (const UsageError&) {
      // A budget for recomputation that so few micro-batches cannot meet.
      const bool last_try = micro_batches >= largest_piece(pieces_);
      if (recipe_.memory.recompute == Recompute() || last_try) throw;
      all = false;
    }
    if (session_.world().workers() == 1) return all;
    const std::vector<std::string> votes = session_.world().exchange(all ? "y" : "n");
    return std::ranges::count(votes, "n") == 0;
  }

  // Of the last try, what does not fit here or, if all does, what needs most.
  const Resident& worst() const {
    return *std::ranges::max_element(found_, {}, [](const Resident& each) {
      return static_cast<double>(each.needed_bytes) / static_cast<double>(each.memory_bytes);
    });
  }

 private:
  bool fits(const Resident& each) const {
    if (options_.limit) return each.fits;
    return static_cast<double>(each.needed_bytes) <=
           (1 - kMemoryHeadroom) * static_cast<double>(each.memory_bytes);
  }

  Session& session_;
  const StepRecipe& recipe_;
  const ModelStep& step_;
  std::span<const Piece> pieces_;
  const FittingOptions& options_;
  std::vector<Resident> found_;
};

}  // namespace

std::int64_t largest_piece(std::span<const Piece> pieces) {
  std::int64_t most = 1;
  for (const Piece& piece : pieces) most = std::max(most, piece.size());
  return most;
}

std::vector<Resident> residents(const World& world, const StepPlans& plans,
                                std::optional<std::size_t> limit) {
  std::vector<Resident> all;
  std::map<std::string, std::size_t> needed;
  for (int r = 0; r < world.local_size(); ++r) {
    const Device& device = world.device(r);
    const DeviceMemory memory = memory_of(device);
    Resident resident{.device = device.name(),
                      .bytes = plans.bytes_on(device, r),
                      .accumulator_bytes = plans.accumulator_bytes(r),
                      .memory = memory.name,
                      .memory_bytes = limit.value_or(memory.bytes)};
    needed[resident.memory] += resident.bytes.total();
    all.push_back(std::move(resident));
  }
  for (Resident& each : all) {
    each.needed_bytes = needed[each.memory];
    each.fits = each.needed_bytes <= each.memory_bytes;
  }
  return all;
}

std::int64_t micro_batches_of(std::span<const Piece> pieces, std::int64_t micro_batch) {
  return (largest_piece(pieces) + micro_batch - 1) / micro_batch;
}

std::int64_t largest_micro_batch(Session& session, const StepRecipe& recipe, const ModelStep& step,
                                 std::span<const Piece> pieces, const FittingOptions& options) {
  const std::int64_t rows = largest_piece(pieces);
  MicroBatchSearch search(session, recipe, step, pieces, options);
  if (search.fits(1)) return rows;
  if (rows == 1 || !search.fits(rows)) {
    constexpr double kMiB = 1024.0 * 1024.0;
    const Resident& worst = search.worst();
    fail<MemoryError>(
        "[{}] even with one sample per micro-batch a training step needs {:.0f} MiB of {:.0f} MiB, "
        "the memory of {}, of which {:.0f} are variables: use 16-bit precision, recomputation, "
        "sharding over more replicas, or a smaller model",
        options.caller, static_cast<double>(worst.needed_bytes) / kMiB,
        static_cast<double>(worst.memory_bytes) / kMiB, worst.memory,
        static_cast<double>(worst.bytes.variables) / kMiB);
  }
  std::int64_t too_few = 1;
  std::int64_t enough = rows;
  while (enough - too_few > 1) {
    const std::int64_t middle = too_few + (enough - too_few) / 2;
    (search.fits(middle) ? enough : too_few) = middle;
  }
  return (rows + enough - 1) / enough;
}

}  // namespace lockstep
