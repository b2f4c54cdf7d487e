#include "lockstep/explain/what_if.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "explain/made_step.h"
#include "lockstep/explain/other_device.h"
#include "lockstep/explain/predict.h"

namespace lockstep {
namespace {

std::vector<std::int64_t> sums_of(const MeasuredStep& step) {
  std::vector<std::int64_t> bytes;
  for (const MeasuredInstruction& each : step.instructions) {
    if (!each.collective.empty()) bytes.push_back(each.wire_bytes);
  }
  return bytes;
}

void expect_in_order(const MeasuredStep& step) {
  for (std::size_t i = 0; i < step.instructions.size(); ++i) {
    for (const int before : step.instructions[i].after) {
      EXPECT_GE(before, 0);
      EXPECT_LT(before, static_cast<int>(i));
    }
  }
}

TEST(WhatIf, OtherBucketsCarryTheSameBytesAndCostTheSameUpdates) {
  const MeasuredStep step = made_step();
  for (const std::size_t bytes : {1u, 3'000'000u, 9'000'000u, 100'000'000u}) {
    const MeasuredStep cut = with_buckets(step, {.first_bytes = bytes, .bytes = bytes});
    expect_in_order(cut);
    const auto sums = sums_of(cut);
    EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), std::int64_t{0}), 13'000'000);
    EXPECT_NEAR(compute_seconds(cut, 32), compute_seconds(step, 32), 1e-12);
  }
  EXPECT_EQ(sums_of(with_buckets(step, {.first_bytes = 1u << 30, .bytes = 1u << 30})),
            std::vector<std::int64_t>{13'000'000});
  EXPECT_EQ(sums_of(with_buckets(step, {.first_bytes = 1, .bytes = 1})), sums_of(step));
}

// As plans do: a kernel of the backward pass waits for memory that a sum and its update occupy.
TEST(WhatIf, OtherBucketsDoNotWaitForMemoryOfTheOldOnes) {
  MeasuredStep step = made_step();
  step.instructions[7].after = {4, 2, 3};
  step.instructions.push_back(kernel("assign", 1e-5, 0, {8, 6}));
  const MeasuredStep one = with_buckets(step, {.first_bytes = 1u << 30, .bytes = 1u << 30});
  expect_in_order(one);
  EXPECT_EQ(sums_of(one), std::vector<std::int64_t>{13'000'000});
  EXPECT_EQ(one.instructions.back().name, "assign");
  EXPECT_NEAR(compute_seconds(one, 32), compute_seconds(step, 32), 1e-12);
}

TEST(WhatIf, CuttingBackGivesTheStepThatItWas) {
  const MeasuredStep step = made_step();
  const MeasuredStep one = with_buckets(step, {.first_bytes = 1u << 30, .bytes = 1u << 30});
  const MeasuredStep again = with_buckets(one, {.first_bytes = 1, .bytes = 1});
  EXPECT_EQ(sums_of(again), sums_of(step));
  // Updates are divided by bytes again; the step of one bucket waits for its end.
  const Scenario scenario = made_scenario(4, 1e9, 0);
  EXPECT_GT(simulate(one, scenario).step_s, simulate(step, scenario).step_s);
  EXPECT_NEAR(simulate(again, scenario).step_s, simulate(step, scenario).step_s, 3e-4);
}

TEST(WhatIf, SixteenBitGradientsHalveTheWire) {
  const MeasuredStep half = with_16_bit_gradients(made_step());
  EXPECT_EQ(sums_of(half), (std::vector<std::int64_t>{2'000'000, 4'000'000, 500'000}));
  EXPECT_LT(simulate(half, made_scenario(4, 1e8)).step_s,
            simulate(made_step(), made_scenario(4, 1e8)).step_s);
}

TEST(WhatIf, AccumulationCommunicatesOnceForAllPieces) {
  const MeasuredStep step = made_step();
  const MeasuredStep four = with_accumulation(step, 4);
  expect_in_order(four);
  EXPECT_EQ(four.batch, 128);
  EXPECT_EQ(sums_of(four), sums_of(step));
  const double updates = 3.1e-4;
  EXPECT_NEAR(compute_seconds(four, 128), 4 * (compute_seconds(step, 32) - updates) + updates,
              1e-12);
  EXPECT_NEAR(four.memory.at(128), step.memory.at(32) + 13e6, 1);
  const Scenario slow = made_scenario(8, 1e8);
  EXPECT_GT(simulate(four, slow).samples_per_s, simulate(step, slow).samples_per_s);
}

TEST(WhatIf, ALargerBatchSharesWhatIsFixed) {
  const MeasuredStep step = made_step();
  const SimulatedStep small = simulate(step, made_scenario(4, 1e9));
  const SimulatedStep large = simulate(with_batch(step, 128), made_scenario(4, 1e9));
  EXPECT_GT(large.samples_per_s, small.samples_per_s);
  EXPECT_GT(large.efficiency, small.efficiency);
  EXPECT_DOUBLE_EQ(large.memory_bytes, 1e6 + 128e4);
}

TEST(WhatIf, RatiosBetweenTwoMeasurementsLeadFromOneToTheOther) {
  const MeasuredStep step = made_step();
  const MeasuredStep half = with_faster_device(step, 2);
  EXPECT_NEAR(compute_seconds(half, 32), compute_seconds(step, 32) / 2, 1e-12);
  const OpRatios ratios = ratios_between(step, half);
  EXPECT_NEAR(ratios.at("matmul"), 0.5, 1e-12);
  EXPECT_NEAR(compute_seconds(with_ratios(step, ratios, 1), 32), compute_seconds(half, 32), 1e-12);
}

TEST(WhatIf, AnotherDeviceScalesByWhatLimitsAnInstruction) {
  MeasuredStep step = made_step();
  step.hardware = "NVIDIA A100";
  for (MeasuredInstruction& each : step.instructions) each.bytes = 1e9;
  const OtherDevice moved = on_device(step, *find_device("h100"));
  EXPECT_NEAR(compute_seconds(moved.step, 32) / compute_seconds(step, 32), 2039.0 / 3350, 1e-9);
  for (MeasuredInstruction& each : step.instructions) each.flops = 1e15;
  EXPECT_NEAR(
      compute_seconds(on_device(step, *find_device("h100")).step, 32) / compute_seconds(step, 32),
      156.0 / 494, 1e-9);
  EXPECT_NE(moved.how_sure.find("published"), std::string::npos);
}

TEST(Predict, BucketsGrowWithTheLatencyOfTheNetwork) {
  const BucketSizes near = predicted_buckets(made_step(), made_scenario(8, 1e10, 1e-6));
  const BucketSizes far = predicted_buckets(made_step(), made_scenario(8, 1e10, 1e-3));
  EXPECT_GT(far.bytes, 100 * near.bytes);
  EXPECT_GT(far.bytes, far.first_bytes);
}

}  // namespace
}  // namespace lockstep
