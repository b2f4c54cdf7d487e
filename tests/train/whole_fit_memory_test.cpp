// Over a whole fit (full batches, the short last one, validation), what is allocated is what was
// planned, to the byte, whatever saves memory; and what the process takes is that, beside
// libraries.
#include <gtest/gtest.h>

#include <fstream>

#include "lockstep/train/model_impl.h"
#include "sanitized.h"
#include "train/problem.h"
#include "train/replica_runs.h"

namespace lockstep::testing {
namespace {

struct MemoryCase {
  std::string name;
  int replicas = 1;
  CompileOptions options = {};
};

CompileOptions saving(const std::function<void(CompileOptions&)>& change = {}) {
  CompileOptions options = with_adam();
  if (change) change(options);
  return options;
}

std::vector<MemoryCase> memory_cases() {
  return {
      {.name = "plain", .options = saving()},
      {.name = "accumulate", .options = saving([](auto& o) { o.accumulate = 3; })},
      {.name = "recompute", .options = saving([](auto& o) { o.recompute = "blocks"; })},
      {.name = "bfloat16", .options = saving([](auto& o) { o.precision = "mixed_bfloat16"; })},
      {.name = "float16", .options = saving([](auto& o) { o.precision = "mixed_float16"; })},
      {.name = "mirrored", .replicas = 2, .options = saving()},
      {.name = "shard 1", .replicas = 2, .options = saving([](auto& o) { o.shard = 1; })},
      {.name = "shard 3", .replicas = 3, .options = saving([](auto& o) { o.shard = 3; })},
      {.name = "16 bits on the wire", .replicas = 2, .options = saving([](auto& o) {
                                                       o.gradient_dtype = "bfloat16";
                                                     })},
      {.name = "all together", .replicas = 2, .options = saving([](auto& o) {
                                                o.accumulate = 2;
                                                o.recompute = "blocks";
                                                o.shard = 3;
                                                o.precision = "mixed_bfloat16";
                                                o.gradient_dtype = "bfloat16";
                                              })},
  };
}

// What the replicas need for all steps of a fit: they share variables and the arena.
class PlannedFit {
 public:
  explicit PlannedFit(ModelImpl& model)
      : model_(model), all_(static_cast<std::size_t>(model.session().world().local_size())) {}

  void add(StepMode mode, std::int64_t samples, std::int64_t micro_batches) {
    Session& session = model_.session();
    const StepRequest request =
        request_step(session.world(), model_.options.optimizer,
                     {.mode = mode,
                      .inputs = {{DType::F32, {samples, 8, 8, 2}}},
                      .labels = {DType::I32, Shape{samples}},
                      .global_batch = samples},
                     split_evenly(samples, session.world().size()), micro_batches);
    const StepPlans plans = plan_step(session, model_.recipe(), request);
    for (int r = 0; r < session.world().local_size(); ++r) {
      const PlanBytes bytes = plans.bytes_on(session.world().device(r), r);
      PlanBytes& sum = all_[static_cast<std::size_t>(r)];
      sum.variables = std::max(sum.variables, bytes.variables);
      sum.arena = std::max(sum.arena, bytes.arena);
      sum.input_output += bytes.input_output;
    }
  }
  // Of the replica that needs most.
  std::size_t bytes() const {
    std::size_t most = 0;
    for (const PlanBytes& each : all_) most = std::max(most, each.total());
    return most;
  }

 private:
  ModelImpl& model_;
  std::vector<PlanBytes> all_;
};

TEST(WholeFitMemory, IsWhatWasPlannedToTheByteWhateverSavesMemory) {
  const Problem data = make_images(2 * 24 + 7);
  const Problem held_out = make_images(2 * 40 + 11, 4);
  for (MemoryCase& each : memory_cases()) {
    each.options.strategy = mirrored(each.replicas);
    Sequential model = make_conv_model();
    model.compile(each.options);
    model.build({8, 8, 2});
    PlannedFit planned(impl_of(model));
    for (const std::int64_t samples : {24, 7}) {
      planned.add(StepMode::Train, samples, each.options.accumulate);
    }
    EXPECT_EQ(impl_of(model).session().resident_bytes(), 0u) << each.name;  // nothing has run
    const Dataset batches = Dataset::from_tensor_slices({data.x, data.y}).batch(24);
    EXPECT_EQ(model.fit(batches).peak_bytes, planned.bytes()) << each.name;
    // Validation reads the slices that training has decided on.
    for (const std::int64_t samples : {40, 11}) planned.add(StepMode::Evaluate, samples, 1);
    const Dataset validation = Dataset::from_tensor_slices({held_out.x, held_out.y}).batch(40);
    const History history = model.fit(batches, {.epochs = 2, .validation_data = validation});
    EXPECT_EQ(history.peak_bytes, planned.bytes()) << each.name;
  }
}

#ifndef LOCKSTEP_SANITIZED  // sanitizers take memory of their own
// Of this process, in bytes.
std::size_t memory_in_use() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stoull(line.substr(6)) * 1024;
  }
  return 0;
}

TEST(WholeFitMemory, OfTheProcessIsWithinFivePercentOfThePlan) {
  const auto train = [](std::int64_t width, std::size_t* planned) {
    Sequential model({Dense({.units = width, .activation = "relu"}),
                      Dense({.units = width, .activation = "relu"}), Dense({.units = kClasses})});
    CompileOptions options = with_adam();
    options.strategy = mirrored(1);
    model.compile(options);
    const Tensor x(DType::F32, {64, kFeatures});
    const Tensor y(DType::I32, {64});
    const Dataset batches = Dataset::from_tensor_slices({x, y}).batch(64);
    std::size_t used = 0;
    const History history = model.fit(
        batches,
        {.epochs = 2,
         .validation_data = batches,
         .callbacks = {LambdaCallback({.on_epoch_end = [&](Model&, std::int64_t, const Logs&) {
           used = memory_in_use();
         }})}});
    *planned = history.peak_bytes;
    return used;
  };
  std::size_t small = 0;
  const std::size_t libraries = train(512, &small) - small;  // their share
  std::size_t planned = 0;
  const std::size_t used = train(6000, &planned);
  EXPECT_GT(planned, std::size_t{500} << 20);
  const double beside = static_cast<double>(used) - static_cast<double>(libraries);
  EXPECT_NEAR(beside / static_cast<double>(planned), 1.0, 0.05)
      << used << " in use, " << libraries << " of libraries, " << planned << " planned";
}
#endif

}  // namespace
}  // namespace lockstep::testing
