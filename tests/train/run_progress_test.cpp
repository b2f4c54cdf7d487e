// Those who watch a run hear how far it has come, and that costs it nothing.
#include "lockstep/train/run_progress.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/profile/recorder.h"
#include "train/problem.h"

namespace lockstep::testing {
namespace {

std::vector<RunProgress> reported(std::size_t replicas, std::chrono::nanoseconds every) {
  const Problem data = make_problem(64);
  std::vector<std::string> devices = {"cpu:0", "cpu:1"};
  devices.resize(replicas);
  Sequential model = make_model();
  model.compile({.strategy = MirroredStrategy({.devices = devices}),
                 .optimizer = Adam(),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  std::vector<RunProgress> all;
  model.fit(data.x, data.y,
            {.epochs = 2,
             .callbacks = {RunProgressReporter(
                 {.report = [&](const RunProgress& now) { all.push_back(now); }, .every = every})},
             .noise_scale_every = 1,
             .batch_size = 8});
  return all;
}

TEST(RunProgress, IsReportedFromTheBeginningToTheEnd) {
  for (const std::size_t replicas : {1u, 2u}) {
    SCOPED_TRACE(replicas);
    const std::vector<RunProgress> all = reported(replicas, std::chrono::hours(1));
    ASSERT_EQ(all.size(), 4u);  // the beginning, two epochs, the end
    EXPECT_EQ(all[0].step, 0);
    EXPECT_FALSE(all[0].loss.has_value());
    EXPECT_EQ(all[1].step, 8);
    EXPECT_EQ(all[1].epoch, 0);
    EXPECT_EQ(all[1].epoch_step, 8);
    EXPECT_TRUE(all[1].logs.has("loss"));
    const RunProgress& last = all.back();
    EXPECT_TRUE(last.ended);
    EXPECT_EQ(last.step, 16);
    EXPECT_EQ(last.steps, 16);
    EXPECT_EQ(last.samples, 128);
    EXPECT_EQ(last.epochs, 2);
    EXPECT_EQ(last.steps_per_epoch, 8);
    EXPECT_EQ(last.devices.size(), replicas);
    EXPECT_EQ(last.batch, 8);
    EXPECT_TRUE(std::isfinite(last.loss.value()));
    EXPECT_EQ(last.losses.size(), 16u);
    EXPECT_EQ(last.losses.back().step, 15);
    EXPECT_EQ(last.step_seconds.count(), 16);
    EXPECT_GT(last.step_seconds.sum_s, 0);
    EXPECT_LE(last.step_seconds.sum_s, last.seconds);
    EXPECT_GT(last.memory_bytes, 0u);
    EXPECT_TRUE(last.noise.has_value());
    double parts = 0;
    for (const auto& [name, share] : parts_of(last.attribution)) parts += share;
    EXPECT_NEAR(parts, 1, 1e-9);
  }
}

TEST(RunProgress, TakesFewReportsWhereTheyTakeLong) {
  // Every step would be reported, if reports cost nothing.
  const Problem data = make_problem(64);
  Sequential model = make_model();
  model.compile(
      {.optimizer = Adam(), .loss = SparseCategoricalCrossentropy({.from_logits = true})});
  std::int64_t reports = 0;
  const auto slow = [&](const RunProgress&) {
    const std::int64_t until = now_ns() + 100'000'000;
    while (now_ns() < until) {
    }
    ++reports;
  };
  model.fit(data.x, data.y,
            {.callbacks = {RunProgressReporter({.report = slow, .every = {}})}, .batch_size = 8});
  // The beginning, the end of the epoch and of training; the steps take less than 150 times 100 ms.
  EXPECT_EQ(reports, 3);
}

TEST(StepHistogram, CountsEveryStepOnce) {
  StepHistogram histogram;
  for (const double seconds : {1e-5, 1e-4, 1.1e-4, 3.0, 1e6}) histogram.add(seconds);
  EXPECT_EQ(histogram.counts.front(), 2);  // limits belong to the bucket below
  EXPECT_EQ(histogram.counts[1], 1);
  EXPECT_EQ(histogram.counts.back(), 1);
  EXPECT_EQ(histogram.count(), 5);
}

}  // namespace
}  // namespace lockstep::testing
