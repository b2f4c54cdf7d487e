#include "lockstep/cli/memory_fit.h"

#include <fmt/core.h>

#include <optional>

#include "lockstep/cli/format.h"
#include "lockstep/train/model_impl.h"
#include "lockstep/train/strategy_impl.h"

namespace lockstep::cli {
namespace {

std::string or_nothing(const std::string& flags) {
  return flags.empty() ? "(nothing)" : flags;
}

}  // namespace

MemoryFlags fitted(const Model& model, const Task& task, std::int64_t batch) {
  ModelImpl& impl = impl_of(model);
  std::vector<std::int64_t> dims(task.sample.dims().begin(), task.sample.dims().end());
  dims.insert(dims.begin(), batch);
  const ModelStep step{.mode = StepMode::Train,
                       .inputs = {{DType::F32, Shape(std::move(dims))}},
                       .labels = {DType::I32, Shape{batch}}};
  impl.fit_into_memory(step, split_evenly(batch, impl.session().world().size()));
  return memory_flags(memory_options(impl.options));
}

MemoryProposal propose(const Strategy& strategy, const StepRunOptions& options,
                       const std::string& fit) {
  std::optional<std::size_t> limit;
  if (fit != "auto") limit = bytes_by_text("--fit", fit);
  const ZooStep step(options);
  const std::shared_ptr<World>& world = impl_of(strategy).world;
  const std::int64_t samples = options.batch * world->size();
  return propose_memory(world, step.recipe(), step.types(samples),
                        split_evenly(samples, world->size()), limit);
}

void print_proposal(const MemoryProposal& proposal) {
  const auto text = [](std::size_t bytes) { return bytes_text(static_cast<double>(bytes)); };
  fmt::print("into {} of {}, planned and not run; times from the device's measured rates\n",
             text(proposal.memory), proposal.of);
  fmt::print("{:>12}  {:<12} {:>12}   {}\n", "memory", "", "ms per step", "options");
  for (const MemoryCandidate& each : proposal.choice.candidates) {
    fmt::print("{:>12}  {:<12} {:>12.3f}   {}\n", text(each.bytes),
               each.fits ? "fits" : "does not fit", each.seconds * 1e3,
               or_nothing(flags_of(each.options)));
  }
  const MemoryCandidate* const best = proposal.choice.best();
  if (best == nullptr) {
    fmt::print("nothing fits: use a smaller batch or model, 16-bit precision, or more replicas\n");
  } else {
    fmt::print("the fastest that fits: {}\n", or_nothing(flags_of(best->options)));
  }
}

Json proposal_json(const MemoryProposal& proposal) {
  Json candidates = Json::array();
  for (const MemoryCandidate& each : proposal.choice.candidates) {
    const MemoryFlags flags = memory_flags(each.options);
    candidates.push_back({{"accumulate", each.options.accumulate},
                          {"recompute", flags.recompute},
                          {"shard", flags.shard},
                          {"offload", flags.offload},
                          {"gradient_dtype", flags.gradient_dtype},
                          {"flags", flags_of(each.options)},
                          {"bytes", each.bytes},
                          {"step_ms", each.seconds * 1e3},
                          {"fits", each.fits}});
  }
  const MemoryCandidate* const best = proposal.choice.best();
  return {{"memory_bytes", proposal.memory},
          {"memory_of", proposal.of},
          {"fits", best != nullptr},
          {"flags", best == nullptr ? Json(nullptr) : Json(flags_of(best->options))},
          {"candidates", candidates}};
}

}  // namespace lockstep::cli
