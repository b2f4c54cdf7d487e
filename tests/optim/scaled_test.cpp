// Rates for several replicas.
#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/exec/executor.h"
#include "lockstep/optim/schedule.h"

namespace lockstep {
namespace {

// The rate that the nodes give for an iteration.
double by_nodes(const Schedule& schedule, double iteration) {
  Graph graph;
  const Value t = graph.input("t", {DType::F32, {}});
  graph.output("rate", schedule.nodes(t));
  State state(host(), 0);
  Executor executor(make_plan(std::move(graph), reference_kernels()), reference_kernels(), state);
  executor.input("t").values<float>()[0] = static_cast<float>(iteration);
  executor.run();
  return executor.output("rate").item();
}

TEST(ScaledRate, GrowsFromThatOfOneReplicaToThatOfAll) {
  const Schedule linear = scaled(0.1, {.replicas = 4, .warm_up_steps = 10});
  EXPECT_NEAR(linear.at(0), 0.1, 1e-12);
  EXPECT_NEAR(linear.at(5), 0.25, 1e-12);
  EXPECT_NEAR(linear.at(10), 0.4, 1e-12);
  EXPECT_NEAR(linear.at(1000), 0.4, 1e-12);
  const Schedule root = scaled(0.1, {.replicas = 4, .scaling = RateScaling::Sqrt});
  EXPECT_TRUE(root.constant());
  EXPECT_NEAR(root.rate(), 0.2, 1e-12);
  EXPECT_EQ(scaled(0.1, {.replicas = 4, .scaling = RateScaling::None}).rate(), 0.1);
}

TEST(ScaledRate, FollowsASchedule) {
  const Schedule cosine = CosineDecay({.initial_learning_rate = 0.1, .decay_steps = 100});
  for (const std::int64_t warm_up : {0, 20}) {
    const Schedule both = scaled(cosine, {.replicas = 2, .warm_up_steps = warm_up});
    for (const std::int64_t t : {0, 5, 20, 60, 100}) {
      const double grown = warm_up == 0 ? 1.0 : std::min(1.0, static_cast<double>(t) / 20);
      EXPECT_NEAR(both.at(t), cosine.at(t) * (1 + grown), 1e-9);
      EXPECT_NEAR(by_nodes(both, static_cast<double>(t)), both.at(t), 1e-6);
    }
  }
}

TEST(ScaledRate, NamesAreChecked) {
  EXPECT_EQ(rate_scaling_by_name("sqrt"), RateScaling::Sqrt);
  EXPECT_THROW(rate_scaling_by_name("cubic"), UsageError);
  EXPECT_THROW(scaled(0.1, {.replicas = 0}), UsageError);
}

}  // namespace
}  // namespace lockstep
