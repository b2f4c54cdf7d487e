#include "lockstep/optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/exec/executor.h"
#include "lockstep/kernels/kernel.h"

namespace lockstep {
namespace {

// A schedule's node form, run for one iteration after the other.
class Nodes {
 public:
  explicit Nodes(const Schedule& schedule)
      : state_(host(), 0), executor_(plan(schedule), reference_kernels(), state_) {}

  double at(std::int64_t iteration) {
    executor_.input("iteration").copy_from(Tensor::scalar(static_cast<float>(iteration)));
    executor_.run();
    return executor_.output("rate").item();
  }

 private:
  static Plan plan(const Schedule& schedule) {
    Graph graph;
    graph.output("rate", schedule.nodes(graph.input("iteration", {DType::F32, {}})));
    return make_plan(std::move(graph), reference_kernels());
  }
  State state_;
  Executor executor_;
};

void expect_both_forms_agree(const Schedule& schedule, std::int64_t iterations) {
  Nodes nodes(schedule);
  for (std::int64_t t = 0; t <= iterations; ++t) {
    const double host = schedule.at(t);
    ASSERT_NEAR(nodes.at(t), host, 1e-6 * std::max(std::abs(host), 0.1))
        << schedule.name() << " at iteration " << t;
  }
}

TEST(Schedule, NodesAndHostAgreeAtEveryIteration) {
  for (const WarmUp warm_up : {WarmUp{}, WarmUp{.steps = 37, .start = 0.1}}) {
    for (const bool staircase : {false, true}) {
      expect_both_forms_agree(ExponentialDecay({.initial_learning_rate = 0.3,
                                                .decay_steps = 49,
                                                .decay_rate = 0.7,
                                                .staircase = staircase,
                                                .warm_up = warm_up}),
                              600);
    }
    for (const double alpha : {0.0, 0.05, 1.0}) {
      expect_both_forms_agree(CosineDecay({.initial_learning_rate = 0.4,
                                           .decay_steps = 300,
                                           .alpha = alpha,
                                           .warm_up = warm_up}),
                              400);
    }
    for (const double power : {0.5, 1.0, 2.0}) {
      expect_both_forms_agree(PolynomialDecay({.initial_learning_rate = 0.2,
                                               .decay_steps = 300,
                                               .end_learning_rate = 0.01,
                                               .power = power,
                                               .warm_up = warm_up}),
                              400);
    }
    expect_both_forms_agree(
        PiecewiseConstantDecay(
            {.boundaries = {10, 20, 90}, .values = {0.1, 0.05, 0.01, 0.001}, .warm_up = warm_up}),
        150);
  }
  expect_both_forms_agree(ConstantRate({.rate = 0.1, .warm_up = {.steps = 20}}), 40);
}

TEST(Schedule, ExponentialDecayFollowsItsFormula) {
  const Schedule smooth =
      ExponentialDecay({.initial_learning_rate = 0.1, .decay_steps = 10, .decay_rate = 0.5});
  EXPECT_DOUBLE_EQ(smooth.at(0), 0.1);
  EXPECT_NEAR(smooth.at(5), 0.1 * std::sqrt(0.5), 1e-15);
  EXPECT_NEAR(smooth.at(30), 0.0125, 1e-15);
  const Schedule stairs = ExponentialDecay(
      {.initial_learning_rate = 0.1, .decay_steps = 10, .decay_rate = 0.5, .staircase = true});
  EXPECT_NEAR(stairs.at(9), 0.1, 1e-15);
  EXPECT_NEAR(stairs.at(10), 0.05, 1e-15);
  EXPECT_NEAR(stairs.at(29), 0.025, 1e-15);
}

TEST(Schedule, StairsAreTakenAtTheRightIterationInNodesToo) {
  // 1/49 times 49 k falls short of k for some k in f32.
  Nodes nodes(ExponentialDecay(
      {.initial_learning_rate = 1.0, .decay_steps = 49, .decay_rate = 0.5, .staircase = true}));
  for (std::int64_t k = 1; k < 20; ++k) {
    EXPECT_NEAR(nodes.at(49 * k) * std::pow(2.0, k), 1.0, 1e-5) << k;
    EXPECT_NEAR(nodes.at(49 * k - 1) * std::pow(2.0, k), 2.0, 1e-5) << k;
  }
}

TEST(Schedule, CosineDecayFallsFromTheFirstRateToItsFraction) {
  const Schedule cosine =
      CosineDecay({.initial_learning_rate = 0.4, .decay_steps = 100, .alpha = 0.1});
  EXPECT_NEAR(cosine.at(0), 0.4, 1e-15);
  EXPECT_NEAR(cosine.at(50), 0.22, 1e-15);
  EXPECT_NEAR(cosine.at(100), 0.04, 1e-15);
  EXPECT_NEAR(cosine.at(1000), 0.04, 1e-15);
}

TEST(Schedule, PolynomialDecayEndsAtItsLastRate) {
  const Schedule square = PolynomialDecay(
      {.initial_learning_rate = 0.5, .decay_steps = 10, .end_learning_rate = 0.1, .power = 2.0});
  EXPECT_NEAR(square.at(0), 0.5, 1e-15);
  EXPECT_NEAR(square.at(5), 0.1 + 0.4 * 0.25, 1e-15);
  EXPECT_NEAR(square.at(10), 0.1, 1e-15);
  EXPECT_NEAR(square.at(11), 0.1, 1e-15);
}

TEST(Schedule, PiecewiseValuesHoldUpToAndIncludingTheirBoundary) {
  const Schedule pieces =
      PiecewiseConstantDecay({.boundaries = {3, 5}, .values = {1.0, 0.5, 0.25}});
  EXPECT_EQ(pieces.at(3), 1.0);
  EXPECT_EQ(pieces.at(4), 0.5);
  EXPECT_EQ(pieces.at(5), 0.5);
  EXPECT_EQ(pieces.at(6), 0.25);
}

TEST(Schedule, WarmUpGrowsLinearlyAndTheScheduleBeginsBehindIt) {
  const Schedule warm = CosineDecay(
      {.initial_learning_rate = 0.4, .decay_steps = 100, .warm_up = {.steps = 4, .start = 0.5}});
  const Schedule cold = CosineDecay({.initial_learning_rate = 0.4, .decay_steps = 100});
  EXPECT_NEAR(warm.at(0), 0.2, 1e-15);
  EXPECT_NEAR(warm.at(2), 0.3, 1e-15);
  EXPECT_NEAR(warm.at(4), 0.4, 1e-15);
  EXPECT_NEAR(warm.at(54), cold.at(50), 1e-15);
}

TEST(Schedule, APlainRateIsConstantAndOneWithWarmUpIsNot) {
  EXPECT_TRUE(Schedule(0.1).constant());
  EXPECT_TRUE(ConstantRate({.rate = 0.1}).constant());
  EXPECT_EQ(ConstantRate({.rate = 0.1}).rate(), 0.1);
  const Schedule warm = ConstantRate({.rate = 0.1, .warm_up = {.steps = 10}});
  EXPECT_FALSE(warm.constant());
  EXPECT_NEAR(warm.at(5), 0.05, 1e-15);
  EXPECT_NEAR(warm.at(1000), 0.1, 1e-15);
}

template <class F>
void expect_schedule_refused(F&& make, const std::string& named) {
  try {
    make();
    ADD_FAILURE() << named << " was accepted";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
  }
}

TEST(Schedule, RefusesOptionsThatMakeNoRateAndNamesThem) {
  expect_schedule_refused([] { ConstantRate({.rate = -1.0}); }, "rate is -1");
  expect_schedule_refused([] { ExponentialDecay({.initial_learning_rate = NAN}); },
                          "initial_learning_rate is nan");
  expect_schedule_refused([] { ExponentialDecay({.decay_steps = 0}); }, "decay_steps is 0");
  expect_schedule_refused([] { ExponentialDecay({.decay_rate = 0.0}); }, "decay_rate is 0");
  expect_schedule_refused([] { CosineDecay({.alpha = -0.5}); }, "alpha is -0.5");
  expect_schedule_refused([] { CosineDecay({.decay_steps = -3}); }, "decay_steps is -3");
  expect_schedule_refused([] { PolynomialDecay({.end_learning_rate = -0.1}); },
                          "end_learning_rate is -0.1");
  expect_schedule_refused([] { PolynomialDecay({.power = 0.0}); }, "power is 0");
  expect_schedule_refused([] { PiecewiseConstantDecay({.boundaries = {1}, .values = {0.1}}); },
                          "1 values for 1 boundaries");
  expect_schedule_refused(
      [] {
        PiecewiseConstantDecay({.boundaries = {5, 5}, .values = {0.1, 0.2, 0.3}});
      },
      "5 is followed by 5");
  expect_schedule_refused([] { CosineDecay({.warm_up = {.steps = -1}}); }, "warm_up.steps is -1");
  expect_schedule_refused([] { CosineDecay({.warm_up = {.steps = 1, .start = -2.0}}); },
                          "warm_up.start is -2");
}

}  // namespace
}  // namespace lockstep
