// What a run records does not grow with its length, and has the memory of its step.
#include "lockstep/train/run_profiler.h"

#include <gtest/gtest.h>

#include <numeric>

#include "lockstep/explain/attribute.h"
#include "lockstep/explain/step_memory.h"
#include "lockstep/train/model_impl.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

// As many as a run at 10,000 steps/s has in ten minutes; a day of them is 144 times as many, and
// has as many windows, examples and points.
TEST(RunProfiler, AMillionStepsAreAShortRecordOfWhichNothingIsLost) {
  const Problem data = make_problem(64);
  Sequential model = make_model();
  model.compile(
      {.optimizer = Adam(), .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  History history = model.fit(data.x, data.y, {.epochs = 2, .batch_size = 8});
  RunProfiler profiler(impl_of(model).session());
  profiler.begin();
  constexpr std::int64_t kSteps = 6'000'000;
  constexpr std::int64_t kStepNs = 100'000;
  std::vector<std::int64_t> samples = {0};
  std::int64_t now = 0;
  std::size_t half_way = 0;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const std::int64_t took = step % 1000 == 999 ? 3 * kStepNs : kStepNs;
    samples[0] += 8;
    profiler.note_loss(step, 1.0);
    if (step % 100 == 0) profiler.note_noise(step, {.value = 10, .low = 5, .high = 20});
    profiler.step_done(step, now, now + took, samples);
    now += took;
    if (step == kSteps / 2) half_way = to_json(profiler.collect(history)).size();
  }
  history.steps = kSteps;
  history.samples = samples[0];
  const RunProfile profile = profiler.collect(history);
  const std::string text = to_json(profile);
  EXPECT_LT(text.size(), 2'000'000u);
  EXPECT_LT(text.size(), 2 * half_way);
  std::int64_t steps = 0;
  for (const StepWindow& window : profile.windows) steps += window.steps;
  EXPECT_GT(steps, kSteps * 99 / 100);
  EXPECT_LE(profile.learning.losses.size(), 512u);
  EXPECT_EQ(profile.learning.losses.back().step, kSteps - 1);
  for (const LossPoint& point : profile.learning.losses) EXPECT_NEAR(point.loss, 1, 1e-9);
  const Explanation explanation = explain(run_profile_from_json(text, "the record"));
  EXPECT_GT(explanation.speed_up, 0);
}

// The parts at the peak are the peak, which is the plan's.
void expect_memory_of(const Plan& plan) {
  const StepMemory memory = memory_of(plan);
  ASSERT_FALSE(memory.instructions.empty());
  double most = 0;
  double arena = 0;
  for (const MemoryAt& at : memory.instructions) most = std::max(most, total_bytes(at));
  const double fixed =
      static_cast<double>(plan.variable_bytes + plan.input_output_bytes + plan.constant_bytes);
  arena = most - fixed;
  EXPECT_LE(most, static_cast<double>(plan.peak_bytes()) + 1);
  // The planner aligns every value.
  const double slack = 256.0 * plan.graph.value_count();
  EXPECT_NEAR(arena, static_cast<double>(plan.live_bytes), slack);
  double parts = 0;
  for (const PeakPart& part : memory.peak) parts += part.bytes;
  EXPECT_NEAR(parts, most, 1e-6 * most);
}

double bytes_of(const StepMemory& memory, MemoryKind kind) {
  double bytes = 0;
  for (const PeakPart& part : memory.peak) bytes += part.kind == kind ? part.bytes : 0;
  return bytes;
}

TEST(StepMemory, IsThatOfThePlanByKindAndLayer) {
  const Problem data = make_images(64);
  for (const std::size_t replicas : {1u, 2u}) {
    SCOPED_TRACE(replicas);
    std::vector<std::string> devices = {"cpu:0", "cpu:1"};
    devices.resize(replicas);
    Sequential model = make_conv_model();
    model.compile({.strategy = MirroredStrategy({.devices = devices}),
                   .optimizer = Adam(),
                   .loss = SparseCategoricalCrossentropy({.from_logits = true})});
    const History history = model.fit(data.x, data.y, {.batch_size = 32});
    const Plan& plan = model.training_plan({{DType::F32, {32, 8, 8, 2}}}, {DType::I32, {32}});
    expect_memory_of(plan);
    const StepMemory memory = memory_of(plan);
    const double parameters = static_cast<double>(model.parameter_count()) * 4;
    // Adam has two numbers for each parameter, in the same layout.
    EXPECT_GE(bytes_of(memory, MemoryKind::Optimizer), 2 * parameters);
    EXPECT_LE(bytes_of(memory, MemoryKind::Optimizer),
              2 * bytes_of(memory, MemoryKind::Parameters));
    EXPECT_GE(bytes_of(memory, MemoryKind::Parameters), parameters);
    EXPECT_GT(bytes_of(memory, MemoryKind::Activations), 0);
    const double gradients = std::accumulate(
        memory.instructions.begin(), memory.instructions.end(), 0.0,
        [](double most, const MemoryAt& at) { return std::max(most, at.bytes[2]); });
    EXPECT_GT(gradients, 0);
    EXPECT_TRUE(std::ranges::any_of(memory.peak, [](const PeakPart& part) {
      return part.layer.find("conv") != std::string::npos;
    }));
    // The run has recorded the same.
    EXPECT_EQ(history.profile->memory.peak.size(), memory.peak.size());
    EXPECT_GT(history.profile->memory.capacity.value_or(0), 0);
    EXPECT_EQ(history.profile->learning.optimizer, "adam");
    EXPECT_FALSE(history.profile->learning.losses.empty());
  }
}

}  // namespace
}  // namespace lockstep::testing
