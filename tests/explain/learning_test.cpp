// Losses and noise scales of a run are kept in bounded memory, and survive a file.
#include "lockstep/explain/learning.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/explain/run_profile.h"

namespace lockstep {
namespace {

TEST(LearningCurve, KeepsTheMeanOfManyStepsInFewPoints) {
  LearningCurve curve(64);
  constexpr std::int64_t kSteps = 100'000;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    curve.add_loss(step, static_cast<double>(kSteps - step));
  }
  const std::vector<LossPoint> points = curve.losses();
  EXPECT_LE(points.size(), 64u);
  EXPECT_GE(points.size(), 32u);
  EXPECT_EQ(points.back().step, kSteps - 1);
  // Each is the mean of the steps since the one before.
  std::int64_t first = 0;
  for (const LossPoint& point : points) {
    const double middle = static_cast<double>(first + point.step) / 2;
    EXPECT_NEAR(point.loss, static_cast<double>(kSteps) - middle, 1e-6);
    first = point.step + 1;
  }
}

TEST(LearningCurve, StepsWithoutAFiniteLossDoNotHideTheOthers) {
  LearningCurve curve(4);
  for (std::int64_t step = 0; step < 8; ++step) curve.add_loss(step, step % 2 == 0 ? 3.0 : NAN);
  for (const LossPoint& point : curve.losses()) EXPECT_EQ(point.loss, 3.0);
  LearningCurve none(4);
  none.add_loss(0, INFINITY);
  EXPECT_TRUE(std::isnan(none.losses().front().loss));
}

TEST(LearningCurve, KeepsSomeOfManyNoiseScales) {
  LearningCurve curve(64);
  for (std::int64_t step = 0; step < 10'000; ++step) {
    curve.add_noise(step, {.value = static_cast<double>(step), .low = 1, .high = 2e4});
  }
  EXPECT_LE(curve.noises().size(), 64u);
  EXPECT_GE(curve.noises().size(), 16u);
  for (const NoiseAt& each : curve.noises()) EXPECT_EQ(each.value, static_cast<double>(each.step));
}

TEST(LearningCurve, ForgetsStepsThatAreTrainedOnceMore) {
  LearningCurve curve(64);
  for (std::int64_t step = 0; step < 10; ++step) curve.add_loss(step, 1);
  curve.go_back_to(5);
  EXPECT_EQ(curve.losses().back().step, 4);
  curve.add_loss(5, 2);
  EXPECT_EQ(curve.losses().back().loss, 2);
}

TEST(RunProfileFile, KeepsWhatIsNotFiniteAndTheMemory) {
  RunProfile profile;
  profile.by_replica.resize(1);
  profile.learning = {.optimizer = "sgd",
                      .learning_rate = 0.25,
                      .noise = NoiseScale{.value = std::numeric_limits<double>::infinity(),
                                          .low = 12,
                                          .high = std::numeric_limits<double>::infinity(),
                                          .squared_gradient = -1,
                                          .trace = 3,
                                          .samples = 9},
                      .losses = {{.step = 3, .loss = NAN}, {.step = 7, .loss = 0.5}},
                      .noises = {{.step = 5, .value = INFINITY, .low = 4, .high = INFINITY}}};
  profile.memory.instructions = {{"matmul dense", {1, 2, 3, 4, 5}}};
  profile.memory.peak = {{.layer = "dense", .bytes = 4, .kind = MemoryKind::Gradients}};
  profile.memory.capacity = 1e9;
  const RunProfile read = run_profile_from_json(to_json(profile), "here");
  EXPECT_EQ(read.learning.optimizer, "sgd");
  EXPECT_EQ(read.learning.learning_rate, 0.25);
  EXPECT_TRUE(std::isinf(read.learning.noise->value));
  EXPECT_EQ(read.learning.noise->low, 12);
  EXPECT_EQ(read.learning.noise->samples, 9);
  ASSERT_EQ(read.learning.losses.size(), 2u);
  EXPECT_TRUE(std::isnan(read.learning.losses[0].loss));
  EXPECT_EQ(read.learning.losses[1].loss, 0.5);
  EXPECT_TRUE(std::isinf(read.learning.noises.at(0).high));
  EXPECT_EQ(read.memory.instructions.at(0).bytes[4], 5);
  EXPECT_EQ(read.memory.peak.at(0).kind, MemoryKind::Gradients);
  EXPECT_EQ(read.memory.capacity, 1e9);
}

}  // namespace
}  // namespace lockstep
