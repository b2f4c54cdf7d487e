// Causes that are put into a simulated run are found and sized. The simulation records what a run
// records; what a cause costs is the difference to the same run without it. No clock is involved.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "lockstep/base/random.h"
#include "lockstep/explain/advise.h"
#include "lockstep/explain/attribute.h"

namespace lockstep {
namespace {

constexpr double kMostError = 0.1;
constexpr double kFalseAlarm = 0.03;  // of the run's time

// What goes wrong in a run, and how much.
struct Injected {
  double slow_replica = 1;      // times as long on the last replica
  std::int64_t slow_since = 0;  // step
  double input_s = 0;           // per step, that all wait for
  double late_input_s = 0;      // that only the last replica waits for
  double link_latency_s = 0;    // exposed, per bucket
  double link_s_per_byte = 0;   // likewise
  double link_wait_s = 0;       // per step, recorded as waiting while only the link is busy
  double fixed_s = 0;           // of each step's computation, however small the piece
  double contention = 1;        // times as long while all compute
  double callback_s = 0;        // per step
  double checkpoint_s = 0;      // every fourth step
  double start_s = 0;
  double validation_s = 0;
};

struct Setting {
  int replicas = 2;
  std::int64_t steps = 400;
  std::int64_t piece = 64;
  double per_sample_s = 1.5e-4;
  double jitter = 0.03;
};

constexpr std::int64_t kBuckets[] = {100'000, 400'000, 1'200'000};

// The run as RunProfiler would have recorded it, in windows of one step.
RunProfile simulated_run(const Injected& injected, const Setting& setting) {
  const auto replicas = static_cast<std::size_t>(setting.replicas);
  RunProfile run;
  run.replicas = setting.replicas;
  run.steps = setting.steps;
  run.global_batch = setting.piece * setting.replicas;
  run.samples = run.steps * run.global_batch;
  for (std::size_t r = 0; r < replicas; ++r) {
    run.by_replica.push_back(
        {.device = fmt::format("cpu:{}", r), .samples = run.steps * setting.piece});
  }
  double exposed = 0;
  for (const std::int64_t bytes : kBuckets) {
    const double seconds =
        injected.link_latency_s + injected.link_s_per_byte * static_cast<double>(bytes);
    exposed += seconds;
    if (seconds <= 0) continue;
    run.collectives.push_back({.name = fmt::format("bucket of {}", bytes),
                               .bytes = bytes,
                               .seconds = seconds,
                               .exposed_s = seconds});
  }
  const double base = injected.fixed_s + setting.per_sample_s * static_cast<double>(setting.piece);
  RandomSequence random(7, 1);
  std::vector<double> step_times;
  for (std::int64_t step = 0; step < setting.steps; ++step) {
    StepWindow window{.first = step, .steps = 1};
    double latest = 0;
    for (std::size_t r = 0; r < replicas; ++r) {
      const bool last = r + 1 == replicas;
      const double slow = last && step >= injected.slow_since ? injected.slow_replica : 1;
      const double noise = 1 + setting.jitter * (2 * static_cast<double>(random.uniform()) - 1);
      window.compute_s.push_back(base * injected.contention * slow * noise);
      window.input_s.push_back(injected.input_s + (last ? injected.late_input_s : 0));
      window.samples.push_back(static_cast<double>(setting.piece));
      latest = std::max(latest, window.compute_s[r] + window.input_s[r]);
    }
    latest += injected.link_wait_s;
    window.step_s = latest + exposed;
    const double checkpoint = step % 4 == 3 ? injected.checkpoint_s : 0;
    for (std::size_t r = 0; r < replicas; ++r) {
      window.wait_s.push_back(latest - window.compute_s[r] - window.input_s[r]);
      TimeParts& time = run.by_replica[r].time;
      time.compute += window.compute_s[r];
      time.input += window.input_s[r];
      time.wait += window.wait_s[r];
      time.communication += exposed;
      time.host += injected.callback_s;
      time.checkpoint += checkpoint;
    }
    run.callback_s += injected.callback_s;
    step_times.push_back(window.step_s);
    run.windows.push_back(std::move(window));
  }
  for (ReplicaProfile& replica : run.by_replica) {
    replica.time.start = injected.start_s;
    replica.time.validation = injected.validation_s;
  }
  if (injected.link_wait_s > 0) {
    run.workers = setting.replicas;
    run.transport = "Gloo";
  }
  run.seconds = run.by_replica.front().time.sum();
  std::ranges::sort(step_times);
  run.step_s = step_times[step_times.size() / 2];
  return run;
}

// The device alone, as measure_step would find it.
MeasuredStep device_alone(const Injected& injected, const Setting& setting) {
  MeasuredStep step;
  step.device = "cpu";
  step.batch = setting.piece;
  step.instructions.push_back(
      {.name = "all",
       .op = "all",
       .seconds = {.fixed = injected.fixed_s, .per_sample = setting.per_sample_s}});
  step.memory = {.fixed = 1e6, .per_sample = 1e4};
  return step;
}

std::map<Cause, double> lost_of(const Explanation& explanation) {
  std::map<Cause, double> lost;
  for (const LostTime& each : explanation.lost) lost[each.cause] += each.seconds;
  return lost;
}

struct Case {
  const char* name;
  Injected injected;
  std::vector<Cause> expected;
  Setting setting = {};
};

const Case kCases[] = {
    {"a clean run", {}, {}},
    {"slow replica", {.slow_replica = 1.5}, {Cause::Imbalance}},
    {"slow replica, a little", {.slow_replica = 1.08}, {Cause::Imbalance}},
    {"slow replica of four", {.slow_replica = 1.4}, {Cause::Imbalance}, {.replicas = 4}},
    {"slow in half of the run", {.slow_replica = 1.5, .slow_since = 203}, {Cause::Imbalance}},
    {"slow input", {.input_s = 4e-3}, {Cause::Input}},
    {"late input of one replica", {.late_input_s = 4e-3}, {Cause::Imbalance}},
    {"shaped link", {.link_s_per_byte = 5e-9}, {Cause::Bandwidth}},
    {"far link", {.link_latency_s = 2e-3}, {Cause::Latency}},
    {"word of others behind the data",
     {.link_s_per_byte = 5e-9, .link_wait_s = 3e-3},
     {Cause::Bandwidth}},
    {"the same, slow worker",
     {.slow_replica = 1.3, .link_s_per_byte = 5e-9, .link_wait_s = 3e-3},
     {Cause::Bandwidth, Cause::Imbalance}},
    {"tiny batches", {.fixed_s = 1e-3}, {Cause::SmallPieces}, {.piece = 4}},
    {"tiny batches of eight", {.fixed_s = 1e-3}, {Cause::SmallPieces}, {.replicas = 8, .piece = 4}},
    {"contention", {.contention = 1.3}, {Cause::Contention}},
    {"checkpoints", {.checkpoint_s = 8e-3}, {Cause::Checkpoint}},
    {"callback", {.callback_s = 2e-3}, {Cause::Host}},
    {"long start", {.start_s = 0.8}, {Cause::Start}},
    {"validation", {.validation_s = 0.8}, {Cause::Validation}},
    {"slow replica, slow input",
     {.slow_replica = 1.5, .input_s = 3e-3},
     {Cause::Imbalance, Cause::Input}},
    {"slow replica, shaped link",
     {.slow_replica = 1.5, .link_s_per_byte = 5e-9},
     {Cause::Imbalance, Cause::Bandwidth}},
    {"slow replica, callback",
     {.slow_replica = 1.5, .callback_s = 2e-3},
     {Cause::Imbalance, Cause::Host}},
    {"slow replica, checkpoints",
     {.slow_replica = 1.5, .checkpoint_s = 8e-3},
     {Cause::Imbalance, Cause::Checkpoint}},
    {"slow replica, contention",
     {.slow_replica = 1.5, .contention = 1.2},
     {Cause::Imbalance, Cause::Contention}},
    {"tiny batches, shaped link",
     {.link_s_per_byte = 5e-10, .fixed_s = 1e-3},
     {Cause::SmallPieces, Cause::Bandwidth},
     {.piece = 4}},
    {"tiny batches, slow replica",
     {.slow_replica = 1.5, .fixed_s = 1e-3},
     {Cause::SmallPieces, Cause::Imbalance},
     {.piece = 4}},
    {"tiny batches, contention",
     {.fixed_s = 1e-3, .contention = 1.3},
     {Cause::SmallPieces, Cause::Contention},
     {.piece = 4}},
    {"slow input, checkpoints",
     {.input_s = 3e-3, .checkpoint_s = 8e-3},
     {Cause::Input, Cause::Checkpoint}},
    {"shaped link, long start",
     {.link_s_per_byte = 5e-9, .start_s = 0.8},
     {Cause::Bandwidth, Cause::Start}},
    {"shaped and far link",
     {.link_latency_s = 1e-3, .link_s_per_byte = 5e-9},
     {Cause::Bandwidth, Cause::Latency}},
};

// What each cause costs by itself, in the presence of the others: the run without it takes so much
// less. Small pieces are what N devices lose against one that has the whole batch.
double cost_of(Cause cause, const Case& each) {
  Injected without = each.injected;
  const auto n = static_cast<double>(each.setting.replicas);
  switch (cause) {
    case Cause::SmallPieces:
      return static_cast<double>(each.setting.steps) * each.injected.fixed_s * (1 - 1 / n);
    case Cause::Contention:
      without.contention = 1;
      without.slow_replica = 1;  // what the slow one takes longer is imbalance
      break;
    case Cause::Latency:
      without.link_latency_s = 0;
      break;
    case Cause::Bandwidth:
      without.link_s_per_byte = without.link_wait_s = 0;
      break;
    case Cause::Input:
      without.input_s = 0;
      break;
    case Cause::Imbalance:
      without.slow_replica = 1;
      without.late_input_s = 0;
      break;
    case Cause::Host:
      without.callback_s = 0;
      break;
    case Cause::Start:
      without.start_s = 0;
      break;
    case Cause::Validation:
      without.validation_s = 0;
      break;
    case Cause::Checkpoint:
      without.checkpoint_s = 0;
      break;
    case Cause::Synchronisation:
    case Cause::Failures:
      return 0;
  }
  Injected with = each.injected;
  if (cause == Cause::Contention) with.slow_replica = 1;
  return simulated_run(with, each.setting).seconds - simulated_run(without, each.setting).seconds;
}

TEST(InjectedCauses, AreFoundAndSizedWithinTenPercent) {
  fmt::print("{:<28} {:<24} {:>8} {:>8} {:>7}\n", "injected", "cause", "cost s", "found s",
             "error");
  for (const Case& each : kCases) {
    SCOPED_TRACE(each.name);
    const RunProfile run = simulated_run(each.injected, each.setting);
    const MeasuredStep alone = device_alone(each.injected, each.setting);
    const Explanation result = explain(run, &alone);
    std::map<Cause, double> lost = lost_of(result);
    for (const Cause cause : each.expected) {
      const double cost = cost_of(cause, each);
      const double error = lost[cause] / cost - 1;
      fmt::print("{:<28} {:<24} {:>8.3f} {:>8.3f} {:>+6.1f}%\n", each.name, name_of(cause), cost,
                 lost[cause], 100 * error);
      EXPECT_LE(std::abs(error), kMostError) << name_of(cause);
      lost.erase(cause);
    }
    if (each.expected.empty()) fmt::print("{:<28} {:<24}\n", each.name, "nothing");
    for (const auto& [cause, seconds] : lost) {
      // A small piece of a step does not shrink anywhere; only what was put there may be large.
      EXPECT_LT(seconds / run.seconds, kFalseAlarm) << "a false alarm: " << name_of(cause);
    }
    double whole = result.speed_up / result.replicas;
    for (const LostTime& one : result.lost) whole += one.fraction;
    EXPECT_NEAR(whole, 1, 1e-9);
  }
}

TEST(InjectedCauses, EquallyFastReplicasAreNotCalledSlow) {
  for (const double jitter : {0.01, 0.1, 0.3}) {
    for (const int replicas : {2, 3, 8}) {
      const RunProfile run = simulated_run({}, {.replicas = replicas, .jitter = jitter});
      EXPECT_FALSE(slow_replica(run)) << replicas << " replicas, " << jitter;
      const MeasuredStep alone = device_alone({}, {});
      EXPECT_LT(lost_of(explain(run, &alone))[Cause::Imbalance], 0.01 * run.seconds)
          << replicas << " replicas, " << jitter;
    }
  }
}

TEST(InjectedCauses, TheStepSinceWhichAReplicaIsSlowIsFoundAmongStepsThatVary) {
  const RunProfile run =
      simulated_run({.slow_replica = 1.3, .slow_since = 203}, {.replicas = 4, .jitter = 0.1});
  const std::optional<SlowReplica> slow = slow_replica(run);
  ASSERT_TRUE(slow);
  EXPECT_EQ(slow->replica, 3);
  EXPECT_NEAR(static_cast<double>(slow->since), 203, 3);
  EXPECT_NEAR(slow->times, 1.3, 0.02);
}

TEST(InjectedCauses, ACleanRunGetsNoAdvice) {
  const RunProfile run = simulated_run({}, {});
  const MeasuredStep alone = device_alone({}, {});
  const Explanation explanation = explain(run, &alone);
  const std::vector<Advice> advice =
      advise(run, alone, explanation, {.memory_bytes = 1e12, .devices = 2});
  EXPECT_TRUE(advice.empty()) << advice.front().change << ": " << advice.front().gain;
}

}  // namespace
}  // namespace lockstep
