#include "lockstep/explain/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "explain/made_step.h"
#include "lockstep/base/error.h"
#include "lockstep/explain/predict.h"

namespace lockstep {
namespace {

// What must hold of any timeline.
void expect_consistent(const MeasuredStep& step, const SimulatedStep& result) {
  std::vector<double> lane_end(4, 0);
  std::vector<double> end_of(step.instructions.size(), -1);
  for (const TimelineEvent& event : result.timeline) {
    if (event.instruction >= 0) {
      end_of[static_cast<std::size_t>(event.instruction)] = event.end;
    }
  }
  for (const TimelineEvent& event : result.timeline) {
    double& end = lane_end[static_cast<std::size_t>(event.lane)];
    EXPECT_GE(event.begin, end - 1e-12) << "two events of a lane overlap";
    EXPECT_GE(event.end, event.begin);
    end = std::max(end, event.end);
    if (event.instruction < 0) continue;
    for (const int before : step.instructions[static_cast<std::size_t>(event.instruction)].after) {
      EXPECT_GE(event.begin, end_of[static_cast<std::size_t>(before)] - 1e-12)
          << "an instruction ran before what it needs";
    }
  }
  ASSERT_FALSE(result.critical_path.empty());
  double at = 0;
  for (const int e : result.critical_path) {
    const TimelineEvent& event = result.timeline[static_cast<std::size_t>(e)];
    EXPECT_NEAR(event.begin, at, 1e-12) << "a gap in the critical path";
    at = event.end;
  }
  EXPECT_NEAR(at, result.step_s, 1e-12);
}

TEST(Simulate, OneReplicaTakesTheSumOfItsInstructions) {
  for (const char* device : {"cuda", "cpu"}) {
    const MeasuredStep step = made_step(device);
    const SimulatedStep result = simulate(step, made_scenario(1));
    // On a GPU the updates run beside the backward pass, all but the last.
    const double beside = device == std::string("cuda") ? 1e-4 + 2e-4 : 0;
    EXPECT_NEAR(result.step_s, compute_seconds(step, 32) - beside, 1e-12) << device;
    EXPECT_DOUBLE_EQ(result.efficiency, 1);
    EXPECT_EQ(result.exposed_s, 0);
    EXPECT_DOUBLE_EQ(result.memory_bytes, 1e6 + 32e4);
    expect_consistent(step, result);
  }
}

TEST(Simulate, TheCriticalPathIsTheStepAndNothingOverlaps) {
  for (const char* device : {"cuda", "cpu"}) {
    const MeasuredStep step = made_step(device);
    for (const double rate : {1e7, 1e8, 1e9, 1e10, 1e12}) {
      for (const int replicas : {2, 3, 16, 1000}) {
        expect_consistent(step, simulate(step, made_scenario(replicas, rate)));
      }
    }
  }
}

TEST(Simulate, FasterLinksAreNeverSlower) {
  for (const char* device : {"cuda", "cpu"}) {
    double before = 1e9;
    for (double rate = 1e6; rate < 1e13; rate *= 1.7) {
      const double now = simulate(made_step(device), made_scenario(8, rate)).step_s;
      EXPECT_LE(now, before + 1e-12);
      before = now;
    }
    EXPECT_LT(before, simulate(made_step(device), made_scenario(8, 1e7)).step_s);
  }
}

TEST(Simulate, EverythingIsExposedOnASlowLinkAndLittleOnAFastOne) {
  const MeasuredStep step = made_step();
  const SimulatedStep slow = simulate(step, made_scenario(2, 1e7, 0));
  EXPECT_NEAR(slow.communication_s, 1.3 + 3.1e-4, 1e-3);
  EXPECT_GT(slow.exposed_s, 0.95 * slow.communication_s);
  const SimulatedStep fast = simulate(step, made_scenario(2, 1e12, 0));
  EXPECT_LT(fast.exposed_s, 1e-5);
  EXPECT_GT(fast.efficiency, 0.99);
}

// The bucket of 4 MB hides behind 5.2 + 4.2 ms of computation, the last one behind nothing.
TEST(Simulate, CommunicationHidesBehindTheBackwardPass) {
  const SimulatedStep result = simulate(made_step(), made_scenario(2, 1e9, 0));
  ASSERT_EQ(result.collectives.size(), 3u);
  EXPECT_NEAR(result.collectives[0].exposed, 0, 1e-9);
  EXPECT_NEAR(result.collectives[2].exposed, 1e-3, 1e-9);
}

TEST(Simulate, ASlowReplicaSlowsAllDown) {
  MeasuredStep step = made_step();
  Scenario scenario = made_scenario(8, 1e12, 0);
  const double even = simulate(step, scenario).step_s;
  scenario.straggler = 1.5;
  const SimulatedStep uneven = simulate(step, scenario);
  EXPECT_NEAR(uneven.step_s / even, 1.5, 0.02);
  EXPECT_NEAR(uneven.synchronisation_s, uneven.step_s - even, 1e-6);
}

TEST(Simulate, ContentionCountsWhatAHostHas) {
  MeasuredStep step = made_step("cpu");
  step.side_by_side = {{.copies = 2, .slowdown = 1.1}, {.copies = 4, .slowdown = 1.3}};
  EXPECT_DOUBLE_EQ(contention_of(step, 1), 1);
  EXPECT_DOUBLE_EQ(contention_of(step, 2), 1.1);
  EXPECT_NEAR(contention_of(step, 3), 1.2, 1e-12);
  EXPECT_DOUBLE_EQ(contention_of(step, 8), 1.3);
  step.host_collectives = {{.ranks = 2, .seconds = 1e-6, .seconds_per_byte = 1e-10}};
  Scenario scenario = made_scenario(2);
  scenario.per_host = 2;
  const SimulatedStep both = simulate(step, scenario);
  EXPECT_NEAR(both.step_s, 1.1 * compute_seconds(step, 32) + 3e-6 + 13e6 * 1e-10, 1e-9);
  EXPECT_NEAR(both.contention_s, 0.1 * compute_seconds(step, 32), 1e-9);
}

TEST(Simulate, CommunicationSlowsKernelsThatRunBesideIt) {
  Scenario scenario = made_scenario(2, 1e9, 0);
  const double before = simulate(made_step(), scenario).compute_s;
  scenario.slowed_by_communication = 0.5;
  const SimulatedStep slowed = simulate(made_step(), scenario);
  EXPECT_GT(slowed.compute_s, before + 1e-3);
  expect_consistent(made_step(), slowed);
}

TEST(Simulate, TheSlowestReplicaAloneGivesTheStepOfAll) {
  const std::vector<double> factors = {1, 0.93, 1.4, 1.1, 0.8};
  for (const char* device : {"cuda", "cpu"}) {
    const MeasuredStep step = made_step(device);
    for (const double rate : {1e7, 1e8, 3e8, 1e9, 1e10}) {
      const Scenario scenario = made_scenario(5, rate);
      EXPECT_NEAR(simulate_all_seconds(step, scenario, factors),
                  simulate_all_seconds(step, scenario, {1.4}), 1e-12)
          << device << " " << rate;
    }
  }
}

TEST(Simulate, TheSlowestOfManyIsFurtherOut) {
  const std::vector<double> jitter = {0.9, 0.95, 1, 1.05, 1.5};
  EXPECT_DOUBLE_EQ(slowest_of(jitter, 1, 0.5), 1);
  double before = 1;
  for (const int replicas : {2, 8, 64, 4096}) {
    const double now = slowest_of(jitter, replicas, 0.5);
    EXPECT_GT(now, before);
    before = now;
  }
  EXPECT_LE(before, 1.5);
  EXPECT_GT(slowest_of(jitter, 2, 0.99), slowest_of(jitter, 2, 0.5));
  EXPECT_NEAR(slowest_of(jitter, 4, 0.5, 3), 3, 0.1);
  EXPECT_DOUBLE_EQ(slowest_of({}, 7, 0.5), 1);
}

TEST(Simulate, FourThousandReplicasOfALargeStepAreDone) {
  MeasuredStep step;
  step.device = "cuda";
  step.batch = 64;
  for (int i = 0; i < 2000; ++i) {
    step.instructions.push_back(
        kernel("k", 1e-5, 1e-7, i > 0 ? std::vector{i - 1} : std::vector<int>()));
  }
  for (int i = 1000; i < 2000; i += 6) step.instructions.push_back(gradient_sum(600'000, {i}));
  step.jitter = {0.98, 1, 1.01, 1.1};
  Scenario scenario = made_scenario(4096, 5e10, 5e-6);
  scenario.per_host = 8;
  const SimulatedStep result = predict(step, scenario);
  EXPECT_EQ(result.replicas, 4096);
  EXPECT_GT(result.efficiency, 0);
  EXPECT_LT(result.efficiency, 1);
}

TEST(Simulate, ImpossibleScenariosAreRejected) {
  EXPECT_THROW(simulate(made_step(), made_scenario(0)), UsageError);
  EXPECT_THROW(simulate(made_step(), {.replicas = 4, .per_host = 1}), UsageError);
  EXPECT_THROW(simulate(MeasuredStep(), made_scenario(1)), UsageError);
}

TEST(Simulate, WorkOnSlicesShrinksWithTheRanks) {
  MeasuredStep step = made_step();
  for (const std::size_t update : {3u, 6u, 9u}) step.instructions[update].sliced = 1;
  const double updates = 3.1e-4;  // measured on one of two ranks
  const double rest = compute_seconds(step, 32) - updates;
  EXPECT_NEAR(compute_seconds(step, 32, 1), rest + 2 * updates, 1e-12);
  EXPECT_NEAR(compute_seconds(step, 32, 8), rest + updates / 4, 1e-12);
}

TEST(Simulate, MemoryIsThatOfThePlanForAsManyRanks) {
  MeasuredStep step = made_step();
  EXPECT_EQ(simulate(step, made_scenario(8)).memory_bytes, step.memory.at(32));
  step.memory_by_ranks = {{.ranks = 1, .bytes = {.fixed = 5e6, .per_sample = 1e4}},
                          {.ranks = 2, .bytes = {.fixed = 3e6, .per_sample = 1e4}},
                          {.ranks = 4, .bytes = {.fixed = 2e6, .per_sample = 1e4}}};
  EXPECT_NEAR(simulate(step, made_scenario(1)).memory_bytes, 5e6 + 32e4, 1);
  EXPECT_NEAR(simulate(step, made_scenario(2)).memory_bytes, 3e6 + 32e4, 1);
  // 1e6 + 4e6 / ranks.
  EXPECT_NEAR(simulate(step, made_scenario(3)).memory_bytes, 1e6 + 4e6 / 3 + 32e4, 1);
  EXPECT_NEAR(simulate(step, made_scenario(16)).memory_bytes, 1e6 + 4e6 / 16 + 32e4, 1);
}

TEST(Simulate, AnAllGatherWithinAHostCostsWhatItWasMeasuredToCost) {
  MeasuredStep step = made_step("cpu");
  step.host_collectives = {
      {.ranks = 2, .seconds = 1e-6, .seconds_per_byte = 1e-9},
      {.ranks = 2, .seconds = 2e-6, .seconds_per_byte = 3e-10, .op = "all_gather"}};
  Scenario scenario = made_scenario(2);
  scenario.per_host = 2;
  const auto seconds = [&](const char* op) {
    const MeasuredInstruction of{.name = op, .op = op, .collective = op, .wire_bytes = 1'000'000};
    return collective_seconds(step, of, scenario).total;
  };
  EXPECT_NEAR(seconds("all_reduce"), 1e-6 + 1e-3, 1e-12);
  EXPECT_NEAR(seconds("all_gather"), 2e-6 + 3e-4, 1e-12);
  EXPECT_NEAR(seconds("reduce_scatter"), 1e-6 + 5e-4, 1e-12);  // half of an all-reduce
}

TEST(Simulate, MicroBatchesBeforeTheLastAreRepeated) {
  const MeasuredStep step = made_step();
  const std::vector<MeasuredInstruction> earlier = {kernel("forward", 1e-3, 1e-4, {}),
                                                    kernel("grad", 2e-3, 1e-4, {0})};
  MeasuredStep four = step;
  four.instructions = micro_batched(earlier, 3, step.instructions);
  ASSERT_EQ(four.instructions.size(), step.instructions.size() + 2);  // nothing to wait for
  EXPECT_NEAR(compute_seconds(four, 32), compute_seconds(step, 32) + 3 * (3e-3 + 64e-4), 1e-12);
  EXPECT_EQ(four.instructions[4].after, std::vector<int>{3});
  EXPECT_EQ(four.instructions[4].carries.front().after, 3);
  const double more =
      simulate(four, made_scenario(4)).step_s - simulate(step, made_scenario(4)).step_s;
  EXPECT_NEAR(more, 3 * (3e-3 + 64e-4), 1e-9);
  // Those that communicate are there each time.
  std::vector<MeasuredInstruction> gathers = earlier;
  gathers.push_back(gradient_sum(1000, {1}));
  EXPECT_EQ(micro_batched(gathers, 3, step.instructions).size(), step.instructions.size() + 9);
}

}  // namespace
}  // namespace lockstep
