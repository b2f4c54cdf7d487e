#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/plan/plan.h"
#include "zero_variable.h"

namespace lockstep {
namespace {

const Allocation& place_of(const Plan& plan, std::string_view output) {
  return plan.values[static_cast<std::size_t>(plan.graph.output_id(output))];
}

int step_of(const Plan& plan, Op op) {
  for (std::size_t s = 0; s < plan.instructions.size(); ++s) {
    if (plan.graph.node(plan.instructions[s].node).op == op) return static_cast<int>(s);
  }
  return -1;
}

TEST(Planner, AnElementwiseOpWritesOverItsDyingInput) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, Shape{100}});
  const Value hidden = exp(x);
  const ValueId hidden_id = hidden.id();
  graph.output("y", neg(hidden));
  const Plan plan = make_plan(std::move(graph), reference_kernels());
  EXPECT_EQ(plan.values[static_cast<std::size_t>(hidden_id)].offset, place_of(plan, "y").offset);
}

TEST(Planner, AnInputOfTheStepIsNeverWrittenOver) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, Shape{100}});
  const ValueId x_id = x.id();
  graph.output("y", neg(x));
  const Plan plan = make_plan(std::move(graph), reference_kernels());
  EXPECT_NE(plan.values[static_cast<std::size_t>(x_id)].offset, place_of(plan, "y").offset);
}

TEST(Planner, AnInputThatIsReadLaterIsNotWrittenOver) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, Shape{100}});
  const Value hidden = exp(x);
  const Value negative = neg(hidden);
  const ValueId negative_id = negative.id();
  const ValueId hidden_id = hidden.id();
  graph.output("y", mul(hidden, negative));
  const Plan plan = make_plan(std::move(graph), reference_kernels());
  EXPECT_NE(plan.values[static_cast<std::size_t>(hidden_id)].offset,
            plan.values[static_cast<std::size_t>(negative_id)].offset);
}

TEST(Planner, AResidualsGradientIsWrittenOverDyAndDxOverX) {
  Graph graph;
  const ValueType image{DType::F32, Shape{2, 4, 4, 8}};
  const Value channels = graph.input("channels", {DType::F32, Shape{8}});
  const Value dy = exp(graph.input("dy", image));
  const Value x = exp(graph.input("x", image));
  const Value y = graph.input("y", image);
  const ValueId dy_id = dy.id();
  const ValueId x_id = x.id();
  const auto results =
      graph.add(Op::BatchNormGrad, std::vector<Value>{dy, x, channels, channels, channels, y},
                {{"epsilon", 1e-3}, {"activation", "relu"}, {"residual", true}});
  graph.output("dx", results[0]);
  graph.output("dresidual", results[3]);
  const Plan plan = make_plan(std::move(graph), reference_kernels());
  const auto offset_of = [&](ValueId id) {
    return plan.values[static_cast<std::size_t>(id)].offset;
  };
  EXPECT_EQ(place_of(plan, "dx").offset, offset_of(x_id));
  EXPECT_EQ(place_of(plan, "dresidual").offset, offset_of(dy_id));
}

TEST(Planner, AReshapeCostsNoStepAndNoMemory) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, Shape{4, 25}});
  graph.output("y", neg(reshape(exp(x), Ints{100})));
  const Plan plan = make_plan(std::move(graph), reference_kernels());
  EXPECT_EQ(plan.instructions.size(), 2u);
  EXPECT_EQ(step_of(plan, Op::Reshape), -1);
}

TEST(Planner, AVariableIsChangedBehindAllThatReadIt) {
  Graph graph;
  const VariableRef counter = zero_variable("counter", Shape{});
  const Value before = graph.variable(counter);
  assign(counter, before + 1.0);
  // Read after the assignment in the graph, through a view: still the old value.
  graph.output("y", exp(reshape(before, Ints{1})));
  const Plan plan = make_plan(std::move(graph), reference_kernels());
  EXPECT_LT(step_of(plan, Op::Exp), step_of(plan, Op::Assign));
}

TEST(Planner, TwoChangesOfOneVariableAreRefused) {
  Graph graph;
  const VariableRef counter = zero_variable("counter", Shape{});
  assign(counter, graph.variable(counter) + 1.0);
  assign(counter, graph.variable(counter) + 2.0);
  EXPECT_THROW(make_plan(std::move(graph), reference_kernels()), UsageError);
}

TEST(Planner, GradientsOfOneUpdateLieSideBySide) {
  Graph graph;
  UpdateInputs inputs;
  inputs.rate = graph.scalar(0.1);
  inputs.scale = graph.scalar(1.0);
  inputs.step = graph.scalar(1, DType::I64);
  std::vector<ValueId> gradients;
  for (int i = 0; i < 5; ++i) {
    const VariableRef parameter = zero_variable(fmt::format("p{}", i), Shape{10 + i});
    inputs.parameters.push_back(graph.variable(parameter));
    inputs.gradients.push_back(exp(graph.variable(parameter)));
    gradients.push_back(inputs.gradients.back().id());
  }
  update(inputs, "sgd", {{"momentum", 0.0}, {"nesterov", false}});
  const Plan plan = make_plan(std::move(graph), reference_kernels());
  for (std::size_t i = 1; i < gradients.size(); ++i) {
    const Allocation& left = plan.values[static_cast<std::size_t>(gradients[i - 1])];
    const Allocation& right = plan.values[static_cast<std::size_t>(gradients[i])];
    EXPECT_EQ(left.offset + left.bytes, right.offset);
  }
}

TEST(Planner, ThePrintedPlanShowsEveryStepAndTheTotals) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, Shape{2, 3}});
  const Value w = graph.input("w", {DType::F32, Shape{3, 4}});
  graph.output("y", matmul(x, w));
  const std::string text = print(make_plan(std::move(graph), reference_kernels()));
  EXPECT_NE(text.find("matmul"), std::string::npos);
  EXPECT_NE(text.find("f32(2, 4)"), std::string::npos);
  EXPECT_NE(text.find("peak memory"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
