// What is fused into pointwise nodes and what is not, and that the results are the same.
#include "lockstep/passes/pointwise.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/drawn_chains.h"
#include "kernels/fusing_kernels.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/passes/pointwise_groups.h"
#include "passes/graph_checks.h"

namespace lockstep {
namespace {

// The fused graph, after checking that a few steps give the same results as the original graph.
Graph pointwise_fused(Graph graph) {
  Graph result = clone(graph);
  optimize(result, fusing_kernels());
  const auto expected = results_of_steps(make_plan(std::move(graph), reference_kernels()),
                                         reference_kernels(), host(), 3);
  const auto actual =
      results_of_steps(make_plan(clone(result), fusing_kernels()), fusing_kernels(), host(), 3);
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    // Variables that nothing reads or changes are not part of the fused graph.
    EXPECT_TRUE(found != actual.end() || name.starts_with("v")) << name;
    if (found != actual.end()) expect_close(found->second, tensor, 1e-6, name);
  }
  return result;
}

Value vector(Graph& graph, const char* name, std::int64_t n = 100) {
  return graph.input(name, {DType::F32, Shape{n}});
}

TEST(Pointwise, AChainIsOneNodeWithItsConstantsInline) {
  Graph graph;
  const Value x = vector(graph, "x");
  const Value rate = graph.input("rate", {DType::F32, {}});
  graph.output("y", relu(exp(x) * 0.5 + x) * rate);
  const Graph result = pointwise_fused(std::move(graph));
  const Node& node = only(result, Op::Pointwise);
  EXPECT_EQ(node.attrs.text("program"),
            "exp $0; mul %0 0.5:f32; add %1 $0; activation.relu %2; mul %3 $1");
  EXPECT_EQ(node.attrs.ints("scalars"), Ints{1});
  EXPECT_EQ(node.inputs.size(), 2u);
  EXPECT_EQ(node.outputs.size(), 1u);
  EXPECT_EQ(result.nodes().size(), 3u) << print(result);
}

TEST(Pointwise, OnlyValuesReadOutsideAreOutputs) {
  Graph graph;
  const Value x = vector(graph, "x");
  const Value doubled = x * 2.0;
  const Value shifted = doubled + 1.0;
  graph.output("sum", reduce_sum(neg(shifted)));
  graph.output("doubled", doubled);
  const Graph result = pointwise_fused(std::move(graph));
  EXPECT_EQ(only(result, Op::Pointwise).attrs.ints("results"), (Ints{0, 2}));
}

TEST(Pointwise, NodesAroundAnotherNodeAreNotFused) {
  Graph graph;
  const Value x = vector(graph, "x");
  const Value weights = exp(x);
  graph.output("y", weights / reduce_sum(weights));
  const Graph result = pointwise_fused(std::move(graph));
  EXPECT_EQ(count(result, Op::Pointwise), 0) << print(result);
  EXPECT_EQ(count(result, Op::Exp), 1);
  EXPECT_EQ(count(result, Op::Div), 1);
}

TEST(Pointwise, BroadcastsOfVectorsAreNotFused) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, Shape{8, 4}});
  const Value bias = graph.input("bias", {DType::F32, Shape{4}});
  graph.output("y", exp(x + bias) * 2.0);
  const Graph result = pointwise_fused(std::move(graph));
  EXPECT_EQ(count(result, Op::Add), 1);
  EXPECT_EQ(only(result, Op::Pointwise).attrs.text("program"), "exp $0; mul %0 2:f32");
}

TEST(Pointwise, TheScalarsOfAStepAreOneNode) {
  Graph graph;
  const auto scalar = [&](const char* name) { return graph.input(name, {DType::F32, {}}); };
  const Value sum = scalar("sum");
  const Value weight = scalar("weight");
  const Value step = graph.input("step", {DType::I64, {}});
  graph.output("loss", sum / maximum(weight, graph.scalar(1.0)));
  graph.output("rate", graph.scalar(0.1) / (cast(step, DType::F32) * 0.01 + 1.0));
  graph.output("next", step + graph.scalar(1, DType::I64));
  const Graph result = pointwise_fused(std::move(graph));
  EXPECT_EQ(only(result, Op::Pointwise).outputs.size(), 3u) << print(result);
}

TEST(Pointwise, AnAssignmentAtTheEndOfAChainIsPartOfIt) {
  Graph graph;
  const VariableRef average = zero_variable("average", Shape{32});
  const Value x = vector(graph, "x", 32);
  const Value kept = graph.variable(average) * 0.9;
  assign(average, kept + x * 0.1);
  const Graph result = pointwise_fused(std::move(graph));
  EXPECT_EQ(count(result, Op::Assign), 0);
  const Node& node = only(result, Op::PointwiseAssign);
  EXPECT_EQ(node.attrs.text("program"), "mul $0 0.9:f32; mul $1 0.1:f32; add %0 %1");
  EXPECT_EQ(node.attrs.ints("targets"), Ints{0});
  EXPECT_TRUE(node.outputs.empty());
}

TEST(Pointwise, AnAssignedValueThatOthersReadIsNotFused) {
  Graph graph;
  const VariableRef counter = zero_variable("counter", Shape{32});
  const Value next = graph.variable(counter) + 1.0;
  assign(counter, next);
  graph.output("sum", reduce_sum(exp(next)));
  const Graph result = pointwise_fused(std::move(graph));
  EXPECT_EQ(count(result, Op::Assign), 1);
  EXPECT_EQ(count(result, Op::PointwiseAssign), 0);
}

TEST(Pointwise, VariablesThatSwapAreReadBeforeEitherIsWritten) {
  Graph graph;
  const VariableRef a = zero_variable("a", Shape{32});
  const VariableRef b = zero_variable("b", Shape{32});
  const Value x = vector(graph, "x", 32);
  assign(a, graph.variable(b) + x);
  assign(b, graph.variable(a) - x);
  pointwise_fused(std::move(graph));
}

TEST(Pointwise, AnAssignmentComesAfterAllReadersOfTheVariable) {
  Graph graph;
  const VariableRef counter = zero_variable("counter", Shape{});
  assign(counter, graph.variable(counter) + 1.0);
  graph.output("y", exp(graph.variable(counter)) * 2.0);
  const Graph result = pointwise_fused(std::move(graph));
  const Plan plan = make_plan(clone(result), fusing_kernels());
  EXPECT_EQ(plan.graph.node(plan.instructions.back().node).op, Op::PointwiseAssign);
}

// Moving averages like those of batch norms, for layers of several sizes.
Graph averages(int layers) {
  Graph graph;
  for (int layer = 0; layer < layers; ++layer) {
    const Shape channels{8 << (layer % 4)};
    const Value x = graph.input(fmt::format("x{}", layer), {DType::F32, channels});
    const Value count = maximum(graph.scalar(1.0), graph.scalar(1.0));
    for (const char* kind : {"mean", "variance"}) {
      const VariableRef average = zero_variable(fmt::format("{}{}", kind, layer), channels);
      const Value before = graph.variable(average);
      const Value moved = before * 0.9 + x / count * 0.1;
      assign(average, select(greater(graph.scalar(1.0), graph.scalar(0.0)), moved, before));
    }
  }
  return graph;
}

TEST(Pointwise, ChainsWithTheSameProgramAreSegmentsOfOneNode) {
  const Graph result = pointwise_fused(averages(5));
  const Node& node = only(result, Op::PointwiseAssign);
  EXPECT_EQ(node.attrs.integer("count"), 10);
  EXPECT_EQ(node.inputs.size(), 20u);  // a variable and a new value each
  EXPECT_EQ(count(result, Op::Maximum), 0);
  EXPECT_EQ(count(result, Op::Greater), 0);
}

TEST(Pointwise, SmallNodesOfTheSameKindAreFusedEvenIfUnconnected) {
  Graph graph;
  for (int i = 0; i < 4; ++i) {
    const Value x = vector(graph, fmt::format("x{}", i).c_str(), 10 + i);
    graph.output(fmt::format("y{}", i), exp(x));
  }
  const Graph result = pointwise_fused(std::move(graph));
  EXPECT_EQ(only(result, Op::Pointwise).attrs.integer("count"), 4);
  EXPECT_EQ(count(result, Op::Exp), 0);
}

TEST(Pointwise, SegmentsNeverDependOnEachOther) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, Shape{4, 10}});
  const Value once = exp(x);
  const Value twice = exp(reduce_max(once, {.axes = {0}}));
  graph.output("y", twice);
  const Graph result = pointwise_fused(std::move(graph));
  EXPECT_EQ(count(result, Op::Exp), 2) << print(result);
}

TEST(Pointwise, UnconnectedLargeNodesAreNotFused) {
  Graph graph;
  for (int i = 0; i < 2; ++i) {
    const Value x = vector(graph, fmt::format("x{}", i).c_str(), kSmallElements + 1);
    graph.output(fmt::format("y{}", i), exp(x) + 1.0);
  }
  const Graph result = pointwise_fused(std::move(graph));
  EXPECT_EQ(count(result, Op::Pointwise), 2);
}

TEST(Pointwise, RoundedWeightsKeepTheirCasts) {
  Graph graph;
  const VariableRef weights = zero_variable("weights", Shape{4, 4});
  const Value x = graph.input("x", {DType::F32, Shape{4, 4}});
  graph.output("y", cast(matmul(cast(x, DType::F64), cast(graph.variable(weights), DType::F64)),
                         DType::F32) +
                        1.0);
  const Graph result = pointwise_fused(std::move(graph));
  EXPECT_EQ(count(result, Op::Cast), 2);
  EXPECT_EQ(count(result, Op::Pointwise), 1);
}

TEST(Pointwise, NodesAfterAnAllReduceWaitSeparately) {
  Graph graph;
  const Value x = vector(graph, "x");
  const Value sums[] = {x * 2.0};
  const Value summed = all_reduce_gradients(sums)[0];
  const Value own = exp(x) + 1.0;
  graph.output("y", (summed + own) * 3.0);
  const Graph result = pointwise_fused(std::move(graph));
  EXPECT_EQ(count(result, Op::Pointwise), 2) << print(result);
}

TEST(Pointwise, AllReducesNeedNotWaitForEachOther) {
  Graph graph;
  for (int i = 0; i < 3; ++i) {
    const Value sums[] = {exp(vector(graph, fmt::format("x{}", i).c_str()))};
    graph.output(fmt::format("y{}", i), reduce_sum(all_reduce_gradients(sums)[0]));
  }
  const Graph result = pointwise_fused(std::move(graph));
  EXPECT_EQ(count(result, Op::Exp), 3) << print(result);
}

TEST(Pointwise, AResultReusesTheMemoryOfADeadOperand) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, Shape{10, 20}});
  graph.output("y", exp(transpose(x, Ints{1, 0})) * 2.0);
  const Graph result = pointwise_fused(std::move(graph));
  const Plan plan = make_plan(clone(result), fusing_kernels());
  const Node& node = only(plan.graph, Op::Pointwise);
  EXPECT_EQ(plan.values[static_cast<std::size_t>(node.inputs[0])].offset,
            plan.values[static_cast<std::size_t>(node.outputs[0])].offset);
}

TEST(Pointwise, GraphsForTheCpuStayUnchanged) {
  Graph graph;
  graph.output("y", exp(vector(graph, "x")) + 1.0);
  optimize(graph, cpu_kernels());
  EXPECT_EQ(count(graph, Op::Pointwise), 0);
}

TEST(Pointwise, SixteenBitFloatsAreComputedInF32) {
  for (const DType dtype : {DType::F16, DType::BF16}) {
    Graph graph;
    const Value x = cast(vector(graph, "x"), dtype);
    graph.output("y", cast(relu(x * 3.0) + x * 0.1, DType::F32));
    Graph result = clone(graph);
    optimize(result, fusing_kernels());
    EXPECT_EQ(only(result, Op::Pointwise).outputs.size(), 1u);
    const auto expected = results_of_steps(make_plan(std::move(graph), reference_kernels()),
                                           reference_kernels(), host(), 1);
    const auto actual = results_of_steps(make_plan(std::move(result), fusing_kernels()),
                                         fusing_kernels(), host(), 1);
    expect_close(actual.at("y of step 0"), expected.at("y of step 0"), 1e-2, "y");
  }
}

class DrawnChains : public ::testing::TestWithParam<int> {};

TEST_P(DrawnChains, GiveTheSameResultsWhenFused) {
  const Graph result = pointwise_fused(DrawnChain(GetParam()).take());
  EXPECT_GT(count(result, Op::Pointwise) + count(result, Op::PointwiseAssign), 0);
}

INSTANTIATE_TEST_SUITE_P(All, DrawnChains, ::testing::Range(0, 60));

}  // namespace
}  // namespace lockstep
