#include "lockstep/optim/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "optim/steps.h"

namespace lockstep {
namespace {

using testing::parameter;
using testing::Steps;
using testing::update_graph;

// The node that updates, in a graph made by an optimizer.
const Node& update_node(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (node.op == Op::Update) return node;
  }
  throw InternalError("the graph has no update");
}

TEST(Optimizer, NamesItsVariablesAfterItselfTheSlotAndTheParameter) {
  const Optimizer adam = Adam();
  update_graph(adam, {parameter("dense/kernel", {2, 3}, std::vector<float>(6)),
                      parameter("dense/bias", {3}, std::vector<float>(3))});
  std::vector<std::string> names;
  for (const VariableRef& variable : adam.variables()) {
    names.push_back(variable->name);
    EXPECT_FALSE(variable->trainable);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"adam/iterations", "adam/learning_rate",
                                             "adam/m/dense/kernel", "adam/v/dense/kernel",
                                             "adam/m/dense/bias", "adam/v/dense/bias"}));
  EXPECT_EQ(adam.variables()[2]->shape, (Shape{2, 3}));
}

TEST(Optimizer, HasTheSlotsOfItsRuleAndNoMore) {
  const auto slots = [](const Optimizer& optimizer) {
    update_graph(optimizer, {parameter("p", {1}, {0.0F})});
    return optimizer.variables().size() - 2;
  };
  EXPECT_EQ(slots(SGD()), 0U);
  EXPECT_EQ(slots(SGD({.momentum = 0.9})), 1U);
  EXPECT_EQ(slots(RMSprop()), 1U);
  EXPECT_EQ(slots(RMSprop({.momentum = 0.5})), 2U);
  EXPECT_EQ(slots(RMSprop({.momentum = 0.5, .centered = true})), 3U);
  EXPECT_EQ(slots(Adagrad()), 1U);
  EXPECT_EQ(slots(LARS()), 1U);
  EXPECT_EQ(slots(LAMB()), 2U);
}

TEST(Optimizer, ASecondGraphContinuesTheSlotsOfTheFirst) {
  const Optimizer adam = Adam();
  const std::vector<VariableRef> parameters = {parameter("p", {2}, {1.0F, 2.0F})};
  update_graph(adam, parameters);
  const auto before = adam.variables();
  update_graph(adam, parameters);
  EXPECT_EQ(adam.variables(), before);
}

TEST(Optimizer, NormsAndBiasesCanBeKeptOutOfWeightDecay) {
  for (const Optimizer& optimizer :
       {SGD({.learning_rate = 0.5, .momentum = 0.9, .weight_decay = 0.25}),
        AdamW({.learning_rate = 0.5, .weight_decay = 0.25}),
        LAMB({.learning_rate = 0.5, .weight_decay = 0.25})}) {
    optimizer.exclude_from_weight_decay({"gamma", "bias"});
    Steps steps(optimizer,
                {parameter("dense/kernel", {1}, {1.0F}), parameter("norm/gamma", {1}, {1.0F}),
                 parameter("dense/bias", {1}, {1.0F})},
                reference_kernels());
    steps.run({{0.0F}, {0.0F}, {0.0F}});  // nothing but decay moves them
    EXPECT_LT(steps.value(0)[0], 0.9F) << optimizer.name();
    EXPECT_EQ(steps.value(1)[0], 1.0F) << optimizer.name();
    EXPECT_EQ(steps.value(2)[0], 1.0F) << optimizer.name();
    EXPECT_THROW(optimizer.exclude_from_weight_decay({}), UsageError);  // too late
  }
}

TEST(Optimizer, CopiesAreTheSameOptimizer) {
  const Optimizer adam = Adam();
  const Optimizer copy = adam;
  update_graph(copy, {parameter("p", {2}, {1.0F, 2.0F})});
  EXPECT_EQ(adam.variables(), copy.variables());
  EXPECT_EQ(adam.variables().size(), 4U);
}

TEST(Optimizer, PutsParametersOfWholeVectorsFirst) {
  const std::vector<VariableRef> parameters = {parameter("odd", {5}, std::vector<float>(5)),
                                               parameter("even", {16}, std::vector<float>(16)),
                                               parameter("one", {1}, std::vector<float>(1)),
                                               parameter("more", {4, 8}, std::vector<float>(32))};
  const Graph graph = update_graph(Adam(), parameters);
  const Node& node = update_node(graph);
  std::vector<std::string> order;
  for (std::size_t i = 3; i < node.inputs.size(); ++i) {
    ValueId id = node.inputs[i];
    const Node& sums = graph.producer(id);  // of a gradient: the sum over all replicas
    if (sums.op == Op::AllReduce) {
      const auto place = std::ranges::find(sums.outputs, id) - sums.outputs.begin();
      id = sums.inputs[static_cast<std::size_t>(place)];
    }
    order.push_back(graph.producer(id).name);
  }
  EXPECT_EQ(order,
            (std::vector<std::string>{"even", "more", "odd", "one", "gradient of even",
                                      "gradient of more", "gradient of odd", "gradient of one",
                                      "adam/m/even", "adam/m/more", "adam/m/odd", "adam/m/one",
                                      "adam/v/even", "adam/v/more", "adam/v/odd", "adam/v/one"}));
}

TEST(Optimizer, DividesTheGradientsByTheWeightOnce) {
  Steps steps(SGD({.learning_rate = 0.5}), {parameter("p", {2}, {1.0F, -2.0F})},
              reference_kernels());
  steps.run({{8.0F, 4.0F}}, 4.0F);
  EXPECT_EQ(steps.value(0), (std::vector<float>{0.0F, -2.5F}));
}

TEST(Optimizer, CountsIterations) {
  const Optimizer sgd = SGD();
  Steps steps(sgd, {parameter("p", {1}, {1.0F})}, reference_kernels());
  for (int i = 0; i < 3; ++i) steps.run({{1.0F}});
  EXPECT_EQ(steps.state().get(*sgd.iterations()).item(), 3);
}

TEST(Optimizer, AnEmptyGlobalBatchChangesNothingWhateverTheGradientsHold) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const KernelLibrary* library : {&reference_kernels(), &cpu_kernels()}) {
    for (const auto& optimizer :
         {SGD({.momentum = 0.9}), Adam({.weight_decay = 0.1}), AdamW(), RMSprop({.momentum = 0.9}),
          Adagrad(), LARS(), LAMB(), SGD({.global_clipnorm = 1.0}), SGD({.clipnorm = 1.0}),
          SGD({.clipvalue = 1.0})}) {
      Steps steps(optimizer, {parameter("p", {3}, {1.0F, 2.0F, 3.0F})}, *library);
      steps.run({{1.0F, 2.0F, -1.0F}});
      std::vector<Tensor> before;
      for (const VariableRef& variable : steps.state().variables()) {
        before.push_back(steps.state().get(*variable));
      }
      steps.run({{0.0F, nan, 1.0F}}, 0.0F);
      for (std::size_t i = 0; i < before.size(); ++i) {
        const VariableRef variable = steps.state().variables()[i];
        EXPECT_TRUE(steps.state().get(*variable).same_bits(before[i])) << variable->name;
      }
    }
  }
}

TEST(Optimizer, AConstantRateCanBeSetBetweenSteps) {
  const Optimizer sgd = SGD({.learning_rate = 1.0});
  Steps steps(sgd, {parameter("p", {1}, {0.0F})}, reference_kernels());
  steps.run({{1.0F}});
  EXPECT_EQ(steps.value(0)[0], -1.0F);
  steps.state().set(*sgd.learning_rate(), Tensor::scalar(0.25F));
  steps.run({{1.0F}});
  EXPECT_EQ(steps.value(0)[0], -1.25F);
}

TEST(Optimizer, AScheduleDecidesTheRateOfEachIteration) {
  const Optimizer sgd = SGD({.learning_rate = PiecewiseConstantDecay(
                                 {.boundaries = {0, 1}, .values = {1.0, 0.5, 0.125}})});
  EXPECT_EQ(sgd.learning_rate(), nullptr);
  Steps steps(sgd, {parameter("p", {1}, {0.0F})}, reference_kernels());
  for (const float expected : {-1.0F, -1.5F, -1.625F, -1.75F}) {
    steps.run({{1.0F}});
    EXPECT_EQ(steps.value(0)[0], expected);
  }
}

TEST(Optimizer, RefusesToTrainNothing) {
  const Optimizer sgd = SGD();
  Graph graph;
  const Value weight = graph.input("weight", {DType::F32, {}});
  EXPECT_THROW(sgd.apply(graph, {}, {}, weight), UsageError);
}

// Those of Keras 3.15.1; LARS is not among its optimizers.
TEST(Optimizer, HasKerassDefaults) {
  EXPECT_EQ(SGDOptions().learning_rate.rate(), 0.01);
  EXPECT_EQ(SGDOptions().momentum, 0.0);
  const auto expect_adam = [](const auto& options, double decay) {
    EXPECT_EQ(options.learning_rate.rate(), 1e-3);
    EXPECT_EQ(options.beta_1, 0.9);
    EXPECT_EQ(options.beta_2, 0.999);
    EXPECT_EQ(options.epsilon, 1e-7);
    EXPECT_EQ(options.weight_decay, decay);
  };
  expect_adam(AdamOptions(), 0.0);
  expect_adam(AdamWOptions(), 4e-3);
  expect_adam(LAMBOptions(), 0.0);
  EXPECT_EQ(RMSpropOptions().learning_rate.rate(), 1e-3);
  EXPECT_EQ(RMSpropOptions().rho, 0.9);
  EXPECT_EQ(RMSpropOptions().epsilon, 1e-7);
  EXPECT_EQ(AdagradOptions().learning_rate.rate(), 1e-3);
  EXPECT_EQ(AdagradOptions().initial_accumulator_value, 0.1);
  EXPECT_EQ(AdagradOptions().epsilon, 1e-7);
}

TEST(Optimizer, IsFoundByName) {
  for (const std::string name : {"sgd", "adam", "adamw", "rmsprop", "adagrad", "lars", "lamb"}) {
    EXPECT_EQ(optimizer_by_name(name).name(), name);
    EXPECT_EQ(optimizer_by_name(name, 0.125).schedule().rate(), 0.125);
    const Optimizer decaying = optimizer_by_name(name, 0.125, 0.5);
    const Graph graph = update_graph(decaying, {parameter("p", {1}, {1.0F})});
    EXPECT_EQ(update_node(graph).attrs.real("weight_decay"), 0.5) << name;
  }
  EXPECT_EQ(optimizer_by_name("Adam").schedule().rate(), 1e-3);
  try {
    optimizer_by_name("adamm");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("adamm"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("rmsprop"), std::string::npos);
  }
}

template <class F>
void expect_refused(F&& make, const std::string& named) {
  try {
    make();
    ADD_FAILURE() << named << " was accepted";
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
  }
}

TEST(Optimizer, RefusesOptionsOutsideTheirRangeAndNamesThem) {
  expect_refused([] { SGD({.learning_rate = -0.1}); }, "learning_rate is -0.1");
  expect_refused([] { Adam({.learning_rate = NAN}); }, "learning_rate is nan");
  expect_refused([] { SGD({.momentum = 1.5}); }, "momentum is 1.5");
  expect_refused([] { SGD({.weight_decay = -1.0}); }, "weight_decay is -1");
  expect_refused([] { Adam({.beta_1 = 1.0}); }, "beta_1 is 1");
  expect_refused([] { AdamW({.beta_2 = -0.5}); }, "beta_2 is -0.5");
  expect_refused([] { LAMB({.epsilon = 0.0}); }, "epsilon is 0");
  expect_refused([] { RMSprop({.rho = 2.0}); }, "rho is 2");
  expect_refused([] { Adagrad({.initial_accumulator_value = -0.1}); },
                 "initial_accumulator_value is -0.1");
  expect_refused([] { LARS({.trust = 0.0}); }, "trust is 0");
  expect_refused([] { SGD({.clipnorm = -1.0}); }, "clipnorm is -1");
  expect_refused([] { SGD({.clipvalue = 1.0, .global_clipnorm = 1.0}); }, "choose one of them");
}

TEST(Optimizer, RefusesGradientsThatDoNotFitTheirParameters) {
  Graph graph;
  const Value weight = graph.input("weight", {DType::F32, {}});
  const Value gradient = graph.input("gradient", {DType::F32, {3}});
  const std::vector<VariableRef> parameters = {parameter("p", {2}, {0.0F, 0.0F})};
  const Optimizer sgd = SGD();
  expect_refused([&] { sgd.apply(graph, parameters, std::vector<Value>{gradient}, weight); },
                 "p is f32(2,), but its gradient is f32(3,)");
  expect_refused([&] { sgd.apply(graph, parameters, {}, weight); }, "0 gradients for 1 parameters");
  expect_refused([&] { sgd.apply(graph, parameters, std::vector<Value>{gradient}, gradient); },
                 "the weight must be f32()");
}

TEST(Optimizer, TakesItsRateByPlace) {
  EXPECT_EQ(Adam(0.01).schedule().rate(), 0.01);
  EXPECT_EQ(SGD(0.1, {.momentum = 0.9}).schedule().rate(), 0.1);
  for (const Optimizer& optimizer :
       {AdamW(0.25), RMSprop(0.25), Adagrad(0.25), LARS(0.25), LAMB(0.25)}) {
    EXPECT_EQ(optimizer.schedule().rate(), 0.25) << optimizer.name();
  }
  EXPECT_FALSE(Adam(CosineDecay({.decay_steps = 10})).schedule().constant());
  EXPECT_THROW(Adam(0.01, {.learning_rate = 0.1}), UsageError);
}

TEST(Optimizer, IsMadeOfItsName) {
  const Optimizer optimizer = "adam";
  EXPECT_EQ(optimizer.name(), "adam");
  EXPECT_EQ(optimizer.schedule().rate(), 1e-3);
  expect_refused([] { Optimizer("adams"); }, "there are: sgd, adam");
}

}  // namespace
}  // namespace lockstep
