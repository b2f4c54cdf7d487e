#include "lockstep/runtime/pass_list.h"

#include <algorithm>

#include "lockstep/device/device_memory.h"
#include "lockstep/distribute/place.h"
#include "lockstep/passes/offload.h"
#include "lockstep/passes/precision.h"
#include "lockstep/passes/recompute.h"
#include "lockstep/plan/plan.h"

namespace lockstep {
namespace {

std::size_t memory_of_rank(const World& world, int local) {
  constexpr std::size_t kForLibraries = 16;  // one part of so many
  const DeviceMemory memory = memory_of(world.device(local));
  std::size_t sharing = 0;
  for (int rank = 0; rank < world.local_size(); ++rank) {
    if (memory_of(world.device(rank)).name == memory.name) ++sharing;
  }
  return (memory.bytes - memory.bytes / kForLibraries) / sharing;
}

}  // namespace

std::vector<std::unique_ptr<Pass>> distribute_passes(std::optional<DType> precision,
                                                     const MemoryOptions& memory,
                                                     const BucketOptions& options,
                                                     const Accumulation& accumulation) {
  expect_valid("[compile]", memory);
  std::vector<std::unique_ptr<Pass>> passes;
  if (precision) passes.push_back(std::make_unique<MixedPrecision>(*precision));
  if (accumulation.form != MicroForm::Whole) {
    passes.push_back(std::make_unique<AccumulatePass>(accumulation));
  }
  passes.push_back(std::make_unique<PlacePass>(
      PlaceOptions{.ranks = options.ranks,
                   .slots = memory.shard > 0 ? Placement::sharded_flat() : Placement(),
                   .parameters = memory.shard > 2 ? Placement::sharded_flat() : Placement()}));
  BucketOptions bucket = options;
  bucket.gather_bytes = memory.gather_bytes;
  passes.push_back(std::make_unique<BucketPass>(bucket));
  if (memory.offload == Offload::Optimizer) passes.push_back(std::make_unique<OffloadPass>());
  return passes;
}

std::unique_ptr<Pass> recompute_pass(const Backend& backend, const Recompute& recompute,
                                     const World& world, int local, std::size_t variable_bytes) {
  const auto peak = [variable_bytes](Graph graph, const Backend& known) {
    const Plan plan = make_plan(std::move(graph), known);
    return plan.peak_bytes() - plan.variable_bytes + std::max(plan.variable_bytes, variable_bytes);
  };
  const bool whole = recompute.kind == Recompute::Kind::Auto;
  return std::make_unique<RecomputePass>(
      backend, RecomputeOptions{.recompute = recompute,
                                .memory_bytes = whole ? memory_of_rank(world, local) : 0,
                                .peak = peak});
}

std::vector<std::string_view> pass_names(const Backend& backend) {
  const MemoryOptions all{.offload = Offload::Optimizer};
  std::vector<std::string_view> names;
  for (const auto& pass : distribute_passes(DType::F16, all, {}, {.form = MicroForm::Last})) {
    names.push_back(pass->name());
  }
  for (const auto& pass : backend_passes(backend)) names.push_back(pass->name());
  names.push_back(RecomputePass(backend, {}).name());
  return names;
}

}  // namespace lockstep
