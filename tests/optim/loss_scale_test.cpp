// Dynamic loss scaling: what a step decides about itself.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/elementwise.h"
#include "optim/steps.h"

namespace lockstep::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNaN = std::nanf("");

double number(Steps& steps, const VariableRef& variable) {
  return steps.state().get(*variable).item();
}

// An optimizer with a loss scale on two parameters.
struct Scaled {
  explicit Scaled(const Optimizer& plain, const LossScaleOptions& options = {})
      : optimizer(plain.with_loss_scale(options)),
        parameters{parameter("a", {3}, {1, 2, 3}), parameter("b", {2}, {-1, 1})},
        steps(optimizer, parameters, cpu_kernels()) {}

  double scale() { return number(steps, optimizer.loss_scale_variables()[0]); }
  double good_steps() { return number(steps, optimizer.loss_scale_variables()[1]); }
  double skipped_steps() { return number(steps, optimizer.loss_scale_variables()[2]); }
  double iterations() { return number(steps, optimizer.iterations()); }
  void good() { steps.run({{1, -1, 2}, {0.5, 0.25}}, 2.0F); }
  void bad(float element) { steps.run({{1, -1, 2}, {0.5, element}}, 2.0F); }
  // Parameters and everything that the optimizer keeps, but not the scale.
  std::vector<Tensor> values() {
    std::vector<Tensor> all;
    for (const VariableRef& each : parameters) all.push_back(steps.state().get(*each).clone());
    for (const VariableRef& each : optimizer.variables()) {
      all.push_back(steps.state().get(*each).clone());
    }
    return all;
  }

  Optimizer optimizer;
  std::vector<VariableRef> parameters;
  Steps steps;
};

TEST(LossScale, AStepWithAGradientThatIsNotFiniteChangesNothingButTheScale) {
  for (const Optimizer& plain :
       {SGD({.momentum = 0.9}), Adam(), LAMB(), Adam({.global_clipnorm = 0.1}),
        SGD({.learning_rate = ExponentialDecay(
                 {.initial_learning_rate = 0.1, .decay_steps = 1, .decay_rate = 0.5})})}) {
    Scaled run(plain, {.initial = 1024});
    run.good();
    const std::vector<Tensor> before = run.values();
    double expected = 1024;
    for (const float element : {kInfinity, kNaN, -kInfinity}) {
      run.bad(element);
      expected /= 2;
      EXPECT_EQ(run.scale(), expected) << plain.name();
    }
    const std::vector<Tensor> after = run.values();
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(after[i].same_bits(before[i])) << plain.name() << " " << i;
    }
    EXPECT_EQ(run.iterations(), 1);
    EXPECT_EQ(run.skipped_steps(), 3);
    run.good();
    EXPECT_EQ(run.iterations(), 2);
    EXPECT_FALSE(run.values()[0].same_bits(before[0])) << plain.name();
  }
}

TEST(LossScale, DoublesAfterSoManyGoodStepsInARow) {
  Scaled run(SGD(), {.initial = 8, .growth_steps = 3});
  run.good();
  run.good();
  EXPECT_EQ(run.scale(), 8);
  EXPECT_EQ(run.good_steps(), 2);
  run.bad(kInfinity);  // they must follow one another
  EXPECT_EQ(run.scale(), 4);
  EXPECT_EQ(run.good_steps(), 0);
  for (int i = 0; i < 3; ++i) run.good();
  EXPECT_EQ(run.scale(), 8);
  EXPECT_EQ(run.good_steps(), 0);
  for (int i = 0; i < 3; ++i) run.good();
  EXPECT_EQ(run.scale(), 16);
}

TEST(LossScale, StaysBetweenOneAndTwoToTheThirtyTwo) {
  Scaled low(SGD(), {.initial = 2});
  for (int i = 0; i < 3; ++i) low.bad(kNaN);
  EXPECT_EQ(low.scale(), 1);
  Scaled high(SGD(), {.initial = 4294967296.0, .growth_steps = 1});
  high.good();
  EXPECT_EQ(high.scale(), 4294967296.0);
}

TEST(LossScale, AnEmptyGlobalBatchIsNeitherGoodNorSkipped) {
  Scaled run(Adam(), {.initial = 8, .growth_steps = 1});
  run.steps.run({{0, 0, 0}, {0, 0}}, 0.0F);
  run.steps.run({{0, 0, 0}, {0, kNaN}}, 0.0F);
  EXPECT_EQ(run.scale(), 8);
  EXPECT_EQ(run.iterations(), 0);
  EXPECT_EQ(run.skipped_steps(), 0);
}

// Scales are powers of two: what they multiply is divided out to the bit.
TEST(LossScale, ScaledSumsOverAScaledWeightGiveTheBitsOfPlainOnes) {
  const auto weights_of = [](Optimizer optimizer, float times) {
    std::vector<VariableRef> parameters{parameter("a", {3}, {1, 2, 3}),
                                        parameter("b", {2}, {-1, 1})};
    Steps steps(optimizer, parameters, cpu_kernels());
    for (float size : {1.0F, 0.3F, 7.0F}) {
      size *= times;
      steps.run({{size, -size, 2 * size}, {0.5F * size, 0.1F * size}}, 2.0F * times);
    }
    return std::pair(steps.value(0), steps.value(1));
  };
  EXPECT_EQ(weights_of(Adam().with_loss_scale(), 32768), weights_of(Adam(), 1));
  const AdamOptions clipped{.global_clipnorm = 0.1};
  EXPECT_EQ(weights_of(Adam(clipped).with_loss_scale(), 32768), weights_of(Adam(clipped), 1));
}

struct Pair {
  Value sum;
  Value weight;
};

TEST(LossScale, ScaleMultipliesSumAndWeightAndNothingWhereThereIsNone) {
  Graph graph;
  const Pair loss{graph.input("sum", {DType::F32, {}}), graph.input("weight", {DType::F32, {}})};
  const Optimizer plain = SGD();
  EXPECT_EQ(plain.scale(loss).sum.id(), loss.sum.id());
  EXPECT_TRUE(plain.loss_scale_variables().empty());
  const Optimizer optimizer = plain.with_loss_scale({.initial = 64});
  const Pair scaled = optimizer.scale(loss);
  graph.output("scaled sum", scaled.sum);
  graph.output("scaled weight", scaled.weight);
  graph.output("scaled for a batch", optimizer.scale(loss, 20).sum);
  State state(host(), 0);
  Executor executor(make_plan(std::move(graph), cpu_kernels()), cpu_kernels(), state);
  executor.input("sum").copy_from(Tensor::scalar(3.0F));
  executor.input("weight").copy_from(Tensor::scalar(0.5F));
  executor.run();
  EXPECT_EQ(executor.output("scaled sum").item(), 192.0);
  EXPECT_EQ(executor.output("scaled weight").item(), 32.0);
  EXPECT_EQ(executor.output("scaled for a batch").item(), 192.0 / 16);
}

TEST(LossScale, InvalidOptionsAreRefused) {
  EXPECT_THROW(SGD().with_loss_scale({.initial = 1000}), UsageError);
  EXPECT_THROW(SGD().with_loss_scale({.initial = 0.5}), UsageError);
  EXPECT_THROW(SGD().with_loss_scale({.initial = std::nan("")}), UsageError);
  EXPECT_THROW(SGD().with_loss_scale({.growth_steps = 0}), UsageError);
  EXPECT_THROW(Optimizer().with_loss_scale(), UsageError);
}

}  // namespace
}  // namespace lockstep::testing
