// The parts of a run's time add up, and each cause is found where it was put.
#include "lockstep/explain/attribute.h"
#include "lockstep/explain/explanation_text.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSteps = 400;

// A run of two replicas without losses: each step computes for 10 ms on both.
RunProfile clean_run(int replicas = 2) {
  RunProfile run;
  run.replicas = replicas;
  run.steps = kSteps;
  run.global_batch = 64 * replicas;
  run.samples = kSteps * run.global_batch;
  run.step_s = 0.010;
  for (int r = 0; r < replicas; ++r) {
    run.by_replica.push_back({.device = "cpu:" + std::to_string(r), .samples = kSteps * 64});
    run.by_replica.back().time.compute = 0.010 * kSteps;
  }
  for (std::int64_t first = 0; first < kSteps; first += 10) {
    StepWindow window{.first = first, .steps = 10, .step_s = 0.010};
    for (int r = 0; r < replicas; ++r) {
      window.compute_s.push_back(0.010);
      window.input_s.push_back(0);
      window.wait_s.push_back(0);
      window.samples.push_back(64);
    }
    run.windows.push_back(window);
  }
  run.seconds = 0.010 * kSteps;
  return run;
}

// A device that needs 10 ms for 64 samples, of which `fixed` do not depend on them.
MeasuredStep alone(double fixed_s) {
  MeasuredStep step;
  step.batch = 64;
  MeasuredInstruction one;
  one.seconds = {.fixed = fixed_s, .per_sample = (0.010 - fixed_s) / 64};
  step.instructions.push_back(one);
  return step;
}

double lost(const Explanation& result, Cause cause) {
  double seconds = 0;
  for (const LostTime& each : result.lost) {
    if (each.cause == cause) seconds += each.seconds;
  }
  return seconds;
}

void expect_whole(const Explanation& result) {
  double fractions = result.speed_up / result.replicas;
  for (const LostTime& each : result.lost) fractions += each.fraction;
  EXPECT_NEAR(fractions, 1.0, 1e-9);
}

TEST(Explain, ARunWithoutLossesHasTheWholeSpeed) {
  const Explanation result = explain(clean_run());
  EXPECT_NEAR(result.speed_up, 2.0, 1e-9);
  EXPECT_TRUE(result.lost.empty());
  expect_whole(result);
}

TEST(Explain, ComputationThatDoesNotShrinkIsLostToSmallPieces) {
  const MeasuredStep step = alone(0.004);
  const Explanation result = explain(clean_run(4), &step);
  // One device needs 4 + 4 x 6 ms for the whole batch, four need 10.
  EXPECT_NEAR(result.speed_up, 28.0 / 10.0, 1e-6);
  EXPECT_NEAR(lost(result, Cause::SmallPieces), kSteps * 0.003, 1e-6);
  EXPECT_EQ(lost(result, Cause::Contention), 0);
  expect_whole(result);
}

TEST(Explain, WhatDevicesTakeFromOneAnotherIsContention) {
  RunProfile run = clean_run();
  for (ReplicaProfile& replica : run.by_replica) replica.time.compute = 0.013 * kSteps;
  for (StepWindow& window : run.windows) window.compute_s = {0.013, 0.013};
  run.seconds = 0.013 * kSteps;
  const MeasuredStep step = alone(0);
  const Explanation result = explain(run, &step);
  EXPECT_NEAR(lost(result, Cause::Contention), kSteps * 0.003, 1e-6);
  EXPECT_NEAR(result.speed_up, 2 * 10.0 / 13.0, 1e-6);
  // It cannot be avoided, so that no more is possible.
  EXPECT_NEAR(result.possible, result.speed_up, 1e-6);
  expect_whole(result);
}

TEST(Explain, ASlowReplicaIsNamedWithItsBeginningAndWhatItCosts) {
  RunProfile run = clean_run();
  constexpr std::int64_t kSince = 200;
  for (StepWindow& window : run.windows) {
    if (window.first < kSince) continue;
    window.compute_s[1] = 0.015;
    window.wait_s[0] = 0.005;
    window.step_s = 0.015;
  }
  run.by_replica[0].time.wait = 0.005 * (kSteps - kSince);
  run.by_replica[1].time.compute += 0.005 * (kSteps - kSince);
  run.seconds += 0.005 * (kSteps - kSince);
  const MeasuredStep step = alone(0);
  const Explanation result = explain(run, &step);
  EXPECT_NEAR(lost(result, Cause::Imbalance), 0.005 * (kSteps - kSince), 1e-6);
  EXPECT_LT(lost(result, Cause::Contention) + lost(result, Cause::Synchronisation), 1e-6);
  const std::optional<SlowReplica> slow = slow_replica(run);
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->replica, 1);
  EXPECT_EQ(slow->since, kSince);
  EXPECT_NEAR(slow->times, 1.5, 1e-9);
  EXPECT_EQ(slow->why, SlowReplica::Why::Device);
  expect_whole(result);
}

TEST(Explain, MoreSamplesOrALateInputAreToldFromASlowDevice) {
  RunProfile work = clean_run();
  RunProfile input = clean_run();
  for (StepWindow& window : work.windows) {
    window.compute_s[0] = 0.015;
    window.samples[0] = 96;
  }
  for (StepWindow& window : input.windows) window.input_s[0] = 0.006;
  ASSERT_TRUE(slow_replica(work));
  EXPECT_EQ(slow_replica(work)->why, SlowReplica::Why::Work);
  ASSERT_TRUE(slow_replica(input));
  EXPECT_EQ(slow_replica(input)->why, SlowReplica::Why::Input);
}

TEST(Explain, StepsThatVaryAreNoImbalance) {
  RunProfile run = clean_run();
  // Each replica is late in every other step: on average both are equally fast.
  for (ReplicaProfile& replica : run.by_replica) {
    replica.time.compute += 0.001 * kSteps;
    replica.time.wait = 0.001 * kSteps;
  }
  for (StepWindow& window : run.windows) {
    window.compute_s = {0.011, 0.011};
    window.wait_s = {0.001, 0.001};
  }
  run.seconds = 0.012 * kSteps;
  const Explanation result = explain(run);
  EXPECT_FALSE(slow_replica(run));
  EXPECT_EQ(lost(result, Cause::Imbalance), 0);
  EXPECT_NEAR(lost(result, Cause::Synchronisation), 0.001 * kSteps, 1e-6);
  expect_whole(result);
}

TEST(Explain, ExposedCommunicationIsDividedIntoLatencyAndBytes) {
  RunProfile run = clean_run();
  // 1 ms and 2 ns a byte.
  run.collectives = {{.name = "small", .bytes = 1000, .seconds = 0.001002, .exposed_s = 0.001002},
                     {.name = "large", .bytes = 500'000, .seconds = 0.002, .exposed_s = 0.002}};
  for (ReplicaProfile& replica : run.by_replica) replica.time.communication = 0.003002 * kSteps;
  run.seconds += 0.003002 * kSteps;
  // From the collectives themselves, or as measured at the start.
  for (const LinkFit link : {LinkFit{}, LinkFit{.latency_s = 0.001, .s_per_byte = 2e-9}}) {
    run.link = link;
    const Explanation result = explain(run);
    EXPECT_NEAR(lost(result, Cause::Latency), 0.002 * kSteps, 1e-4);
    EXPECT_NEAR(lost(result, Cause::Bandwidth), 0.001002 * kSteps, 1e-4);
    expect_whole(result);
  }
}

TEST(Explain, TheOtherCausesAreTheTimesThatWereRecorded) {
  RunProfile run = clean_run();
  for (ReplicaProfile& replica : run.by_replica) {
    replica.time.input = 0.5;
    replica.time.host = 0.25;
    replica.time.start = 0.75;
    replica.time.validation = 1;
    replica.time.checkpoint = 2;
  }
  run.recoveries = {{.cause = "worker 1 has ended", .step = 20, .lost_steps = 3, .seconds = 1.5}};
  run.input_limit = "map decode";
  run.callback_s = 0.2;
  run.seconds += 4.5 + 1.5;
  const Explanation result = explain(run);
  EXPECT_NEAR(lost(result, Cause::Input), 0.5, 1e-9);
  EXPECT_NEAR(lost(result, Cause::Host), 0.25, 1e-9);
  EXPECT_NEAR(lost(result, Cause::Start), 0.75, 1e-9);
  EXPECT_NEAR(lost(result, Cause::Validation), 1, 1e-9);
  EXPECT_NEAR(lost(result, Cause::Checkpoint), 2, 1e-9);
  EXPECT_NEAR(lost(result, Cause::Failures), 1.5, 1e-9);
  EXPECT_NE(text_of(result).find("limited by map decode"), std::string::npos) << text_of(result);
  EXPECT_NE(text_of(result).find("worker 1 has ended"), std::string::npos) << text_of(result);
  expect_whole(result);
}

TEST(RunProfileJson, ComesBackAsItWas) {
  RunProfile run = clean_run();
  run.model = "lenet";
  run.predicted = Predicted{.step_ms = 9, .low_ms = 8, .high_ms = 10};
  run.examples.push_back({.step = 8, .seconds = 0.01, .slow = true});
  run.examples.back().tracks.push_back({.name = "cpu:0", .worker = 1, .clock_error_s = 1e-5});
  run.examples.back().tracks.back().spans.push_back(
      {.name = "conv \"1\"", .kind = SpanKind::Wait, .begin_s = 0.5, .end_s = 0.75});
  const std::string text = to_json(run);
  const RunProfile again = run_profile_from_json(text, "profile.json");
  EXPECT_EQ(to_json(again), text);
  ASSERT_EQ(again.examples.size(), 1u);
  const ProfiledSpan& span = again.examples[0].tracks[0].spans[0];
  EXPECT_EQ(span.name, "conv \"1\"");
  EXPECT_EQ(span.kind, SpanKind::Wait);
  EXPECT_EQ(again.windows.size(), run.windows.size());
}

TEST(RunProfileJson, DamagedAndForeignTextsAreNamed) {
  const std::string text = to_json(clean_run());
  const auto refusal = [](const std::string& damaged) -> std::string {
    try {
      run_profile_from_json(damaged, "some/profile.json");
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal(text.substr(0, text.size() / 2)).find("some/profile.json"), std::string::npos);
  EXPECT_NE(refusal("{\"format\": \"something else\"}").find("not the profile"), std::string::npos);
  EXPECT_NE(refusal("[1, 2]").find("not the profile"), std::string::npos);
  EXPECT_NE(refusal(""), "");
  std::string other = text;
  other.replace(other.find("\"format_version\":1"), 18, "\"format_version\":9");
  EXPECT_NE(refusal(other).find("version 9"), std::string::npos) << refusal(other);
  std::string fewer = text;
  fewer.replace(fewer.find("\"replicas\":2"), 12, "\"replicas\":3");
  EXPECT_NE(refusal(fewer).find("2 replicas, of 3"), std::string::npos) << refusal(fewer);
}

}  // namespace
}  // namespace lockstep
