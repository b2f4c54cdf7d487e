// Advice: what is worth changing is found with its gain and its command, and nothing else.
#include "lockstep/explain/advise.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "explain/made_step.h"
#include "lockstep/explain/attribute.h"
#include "lockstep/explain/what_if.h"

namespace lockstep {
namespace {

// A run of the made step as the simulation says that it goes.
struct MadeRun {
  MeasuredStep step;
  RunProfile profile;
};

struct MadeRunOptions {
  int replicas = 4;
  double bytes_per_s = 1e12;
  double slow = 1;  // times as long on the last replica
  std::int64_t batch = 32;
  bool network = false;
  double start_s = 0;
};

constexpr std::int64_t kRunSteps = 200;

MadeRun made_run(const MadeRunOptions& options) {
  MadeRun run{.step = with_batch(made_step(), options.batch), .profile = {}};
  RunProfile& profile = run.profile;
  profile.replicas = options.replicas;
  profile.workers = options.network ? options.replicas : 1;
  profile.transport = options.network ? "Gloo" : "";
  profile.steps = kRunSteps;
  profile.global_batch = options.batch * options.replicas;
  profile.samples = kRunSteps * profile.global_batch;
  const double n = options.replicas;
  profile.link = {.latency_s = 2e-5, .s_per_byte = 2 * (n - 1) / n / options.bytes_per_s};
  const SimulatedStep simulated = simulate(run.step, scenario_of(profile, run.step));
  for (const SimulatedCollective& each : simulated.collectives) {
    profile.collectives.push_back({.name = "all_reduce",
                                   .bytes = static_cast<std::int64_t>(each.bytes),
                                   .seconds = each.seconds,
                                   .exposed_s = each.exposed});
  }
  const double compute = simulated.compute_s;
  const double exposed = options.replicas > 1 ? simulated.step_s - compute : 0;
  StepWindow window{.steps = 1, .step_s = compute * options.slow + exposed};
  for (int r = 0; r < options.replicas; ++r) {
    const double mine = r + 1 == options.replicas ? compute * options.slow : compute;
    window.compute_s.push_back(mine);
    window.input_s.push_back(0);
    window.wait_s.push_back(compute * options.slow - mine);
    window.samples.push_back(static_cast<double>(options.batch));
    profile.by_replica.push_back({.device = fmt::format("cuda:{}", r)});
    profile.by_replica.back().time = {.compute = mine * kRunSteps,
                                      .communication = exposed * kRunSteps,
                                      .wait = window.wait_s.back() * kRunSteps,
                                      .start = options.start_s};
  }
  for (std::int64_t s = 0; s < kRunSteps; ++s) {
    window.first = s;
    profile.windows.push_back(window);
  }
  profile.step_s = window.step_s;
  profile.seconds = window.step_s * kRunSteps + options.start_s;
  return run;
}

std::vector<Advice> advice_for(const MadeRun& run, Adjustable adjustable) {
  if (!adjustable.command) {
    adjustable.command = [](const Adjustable::Flags& flags) {
      std::string text = "lockstep train";
      for (const auto& [flag, value] : flags) text += fmt::format(" {} {}", flag, value);
      return text;
    };
  }
  return advise(run.profile, run.step, explain(run.profile, &run.step), adjustable);
}

const Advice* find(const std::vector<Advice>& all, const std::string& words) {
  const auto found = std::ranges::find_if(
      all, [&](const Advice& each) { return each.change.find(words) != std::string::npos; });
  return found == all.end() ? nullptr : &*found;
}

std::string names(const std::vector<Advice>& all) {
  std::string text;
  for (const Advice& each : all) text += each.change + ": " + each.gain + "\n";
  return text;
}

TEST(Advice, ALargerBatchComesWithItsMemoryAndTheGainOfAReplay) {
  const MadeRun run = made_run({.batch = 4});
  const std::vector<Advice> all = advice_for(run, {.memory_bytes = 1e9});
  const Advice* const larger = find(all, "batch 4 ->");
  ASSERT_NE(larger, nullptr) << names(all);
  EXPECT_NE(larger->gain.find("on 4 devices; memory"), std::string::npos) << larger->gain;
  EXPECT_NE(larger->command.find("--batch-per-replica"), std::string::npos) << larger->command;
  EXPECT_EQ(larger->command.find("--accumulate"), std::string::npos) << larger->command;
  // Following it: the run with that batch is so much faster per sample.
  const auto batch = std::stoll(larger->command.substr(larger->command.rfind(' ') + 1));
  const MadeRun followed = made_run({.batch = batch});
  const double before = static_cast<double>(run.profile.samples) / run.profile.seconds;
  const double after = static_cast<double>(followed.profile.samples) / followed.profile.seconds;
  EXPECT_NEAR(after / before, larger->speed_up, 0.02 * larger->speed_up);
}

TEST(Advice, ABatchThatDoesNotFitIsAccumulated) {
  const MadeRun run = made_run({.bytes_per_s = 1e9, .batch = 8, .network = true});
  const double memory = run.step.memory.at(8);
  const std::vector<Advice> all = advice_for(run, {.memory_bytes = 1.15 * memory});
  const Advice* const larger = find(all, "micro-batches");
  ASSERT_NE(larger, nullptr) << names(all);
  EXPECT_NE(larger->command.find("--accumulate"), std::string::npos) << larger->command;
  EXPECT_GT(larger->speed_up, 1.05);
}

TEST(Advice, ASlowLinkAsksForShorterGradientsOrAFasterNetwork) {
  const MadeRun run = made_run({.bytes_per_s = 1.2e9, .network = true});
  const std::vector<Advice> all = advice_for(run, {.memory_bytes = 1e12});
  const Advice* const shorter = find(all, "16-bit");
  ASSERT_NE(shorter, nullptr) << names(all);
  EXPECT_NE(shorter->command.find("--gradient-dtype bfloat16"), std::string::npos);
  // Half of the bytes: as a link that is twice as fast.
  const MadeRun followed = made_run({.bytes_per_s = 2.4e9, .network = true});
  EXPECT_NEAR(run.profile.seconds / followed.profile.seconds, shorter->speed_up, 0.05);
  EXPECT_NE(find(all, "a faster network"), nullptr) << names(all);
  // Not again where they are short already.
  EXPECT_EQ(find(advice_for(run, {.memory_bytes = 1e12, .short_words = true}), "16-bit"), nullptr);
}

TEST(Advice, AnotherPrecisionGainsWhatWasMeasured) {
  const MadeRun run = made_run({});
  Adjustable adjustable{.memory_bytes = 1e12};
  adjustable.precisions.push_back(
      {"mixed_bfloat16", with_faster_device(run.step, 2), {{"--precision", "mixed_bfloat16"}}});
  const std::vector<Advice> all = advice_for(run, adjustable);
  const Advice* const other = find(all, "precision float32 -> mixed_bfloat16");
  ASSERT_NE(other, nullptr) << names(all);
  EXPECT_NEAR(other->speed_up, 2, 0.05);
  EXPECT_NE(other->command.find("--precision mixed_bfloat16"), std::string::npos);
}

TEST(Advice, ASlowReplicaGetsASmallerPieceOrNone) {
  // Three times as slow: with pieces by speed the others are busy all the time.
  const MadeRun slow = made_run({.slow = 3});
  const std::vector<Advice> all = advice_for(slow, {.memory_bytes = 1e12});
  const Advice* const balance = find(all, "match the speed");
  ASSERT_NE(balance, nullptr) << names(all);
  EXPECT_NE(balance->command.find("--balance auto"), std::string::npos);
  EXPECT_EQ(find(all, "train without"), nullptr) << names(all);
  // So slow that even the smallest piece keeps the others waiting: better without it.
  const MadeRun hopeless = made_run({.slow = 20});
  const std::vector<Advice> then = advice_for(hopeless, {.memory_bytes = 1e12});
  const Advice* const without = find(then, "train without cuda:3");
  ASSERT_NE(without, nullptr) << names(then);
  EXPECT_NE(without->command.find("--devices cuda:0,cuda:1,cuda:2"), std::string::npos);
  EXPECT_NE(without->command.find("--global-batch 128"), std::string::npos) << without->command;
  // 3 devices do in one step what 4 did: compare with a run of larger pieces on three.
  const double step_s = slow.step.instructions.empty() ? 0 : compute_seconds(slow.step, 128.0 / 3);
  EXPECT_NEAR(without->speed_up, hopeless.profile.step_s / step_s, 0.05 * without->speed_up);
}

TEST(Advice, AnotherDeviceThatIsHereIsOfferedAsAReplicaMore) {
  const MadeRun run = made_run({});
  EXPECT_EQ(find(advice_for(run, {.devices = 4}), "replicas"), nullptr);
  const std::vector<Advice> all = advice_for(run, {.devices = 8});
  const Advice* const more = find(all, "4 -> 5 replicas");
  ASSERT_NE(more, nullptr) << names(all);
  EXPECT_NEAR(more->speed_up, 1.25, 0.03);
}

TEST(Advice, TheInputGainsOnlyUpToTheNextLimit) {
  MadeRun run = made_run({});
  const double compute = run.profile.seconds;
  for (ReplicaProfile& replica : run.profile.by_replica) replica.time.input = compute;
  for (StepWindow& window : run.profile.windows) {
    for (double& input : window.input_s) input = compute / kRunSteps;
  }
  run.profile.seconds *= 2;
  run.profile.input_limit = "map decode";
  run.profile.stages = {{.name = "map decode", .busy_s = 2 * compute, .threads = 1},
                        {.name = "batch", .busy_s = 0.1 * compute, .threads = 1}};
  const Advice* found = nullptr;
  const std::vector<Advice> all = advice_for(run, {});
  ASSERT_NE(found = find(all, "map decode"), nullptr) << names(all);
  EXPECT_NEAR(found->speed_up, 2, 0.01);
  // The next stage takes three quarters as long.
  run.profile.stages[1].busy_s = 1.5 * compute;
  const std::vector<Advice> limited = advice_for(run, {});
  ASSERT_NE(found = find(limited, "map decode"), nullptr) << names(limited);
  EXPECT_NEAR(found->speed_up, 2 / 1.5, 0.01);
}

TEST(Advice, MoreThreadsForTheInputAreNoMoreThanThereAre) {
  MadeRun run = made_run({});
  const double compute = run.profile.seconds;
  for (ReplicaProfile& replica : run.profile.by_replica) replica.time.input = 3 * compute;
  for (StepWindow& window : run.profile.windows) {
    for (double& input : window.input_s) input = 3 * compute / kRunSteps;
  }
  run.profile.seconds *= 4;
  run.profile.input_limit = "map decode";
  run.profile.input_advice =
      "Let map decode run on several threads: map(…, {.parallel = AUTOTUNE}).";
  run.profile.stages = {{.name = "map decode", .busy_s = 4 * compute, .threads = 1}};
  const auto gain = [&](int threads) {
    const std::vector<Advice> all = advice_for(run, {.input_threads = threads});
    const Advice* const found = find(all, "map decode");
    return found == nullptr ? 0 : found->speed_up;
  };
  EXPECT_NEAR(gain(2), 2, 0.01);
  EXPECT_NEAR(gain(3), 3, 0.01);
  EXPECT_NEAR(gain(16), 4, 0.01);  // then computation limits
}

TEST(Advice, CheckpointsAreHalvedInTheirOwnUnit) {
  MadeRun run = made_run({});
  const double saving = run.profile.seconds / 4;
  for (ReplicaProfile& replica : run.profile.by_replica) replica.time.checkpoint = saving;
  run.profile.seconds += saving;
  Adjustable adjustable;
  adjustable.value = [](const std::string& flag) {
    return flag == "--checkpoint-every" ? std::string("10m") : std::string();
  };
  const std::vector<Advice> all = advice_for(run, adjustable);
  const Advice* const rarer = find(all, "checkpoints half as often");
  ASSERT_NE(rarer, nullptr) << names(all);
  EXPECT_NE(rarer->command.find("--checkpoint-every 20m"), std::string::npos) << rarer->command;
  EXPECT_NEAR(rarer->speed_up, 1 / 0.9, 1e-3);
}

TEST(Advice, ACleanRunGetsNone) {
  const MadeRun run = made_run({.batch = 512});
  const std::vector<Advice> all = advice_for(run, {.memory_bytes = 1e12, .devices = 4});
  EXPECT_TRUE(all.empty()) << names(all);
}

TEST(Advice, WhatIsOutsideOfStepsIsNotPromised) {
  // Half of the time is the start: a batch that is any number of times as fast gains less than 2.
  const MadeRun run = made_run({.batch = 4});
  const MadeRun late = made_run({.batch = 4, .start_s = run.profile.seconds});
  const std::vector<Advice> all = advice_for(late, {.memory_bytes = 1e12});
  for (const Advice& each : all) EXPECT_LT(each.speed_up, 2) << each.change;
}

}  // namespace
}  // namespace lockstep
