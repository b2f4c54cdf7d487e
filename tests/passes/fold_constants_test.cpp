// What is computed once, what is removed, and that no bit of a result changes.
#include "lockstep/passes/fold_constants.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/graph/ops/ops.h"
#include "lockstep/passes/pipeline.h"
#include "passes/graph_checks.h"

namespace lockstep {
namespace {

// The output "y" of a run on the CPU, with every input filled with these numbers in turn.
Tensor run(Graph graph, const std::vector<float>& numbers = {-1.5f, -0.0f, 0.0f, 2.0f, 3e-40f}) {
  State state(host(), 1);
  Executor executor(make_plan(std::move(graph), cpu_kernels()), cpu_kernels(), state);
  for (const auto& [name, id] : executor.plan().graph.inputs()) {
    Tensor input = executor.input(name);
    const std::span<float> values = input.values<float>();
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = numbers[i % numbers.size()];
  }
  executor.run();
  return executor.output("y").clone();
}

// The folded graph, after checking that it gives the same bits as the original.
Graph folded(const Graph& graph) {
  Graph result = clone(graph);
  optimize(result, cpu_kernels());
  EXPECT_TRUE(run(clone(result)).same_bits(run(clone(graph)))) << print(result);
  return result;
}

Value input(Graph& graph) {
  return graph.input("x", {DType::F32, Shape{5}});
}

TEST(FoldConstants, ConstantExpressionsAreComputedOnce) {
  Graph graph;
  const Value x = input(graph);
  const Value weight = graph.scalar(3.0);
  const Value scale =
      select(greater(weight, graph.scalar(0.0)), graph.scalar(1.0) / weight, graph.scalar(0.0));
  graph.output("y", x * broadcast_to(exp(scale) + 0.1, Shape{5}));
  const Graph result = folded(graph);
  EXPECT_EQ(count(result, Op::Mul), 1);
  EXPECT_EQ(result.nodes().size(), 3u) << print(result);
}

TEST(FoldConstants, NodesWithoutEffectAreRemoved) {
  Graph graph;
  const Value x = input(graph);
  const Value yes = greater(graph.scalar(1.0), graph.scalar(0.0));
  const Value same = (x * 1.0) / graph.scalar(1.0) - graph.scalar(0.0);
  graph.output("y", neg(select(broadcast_to(yes, Shape{5}), same, exp(x))));
  const Graph result = folded(graph);
  EXPECT_EQ(count(result, Op::Neg), 1);
  EXPECT_EQ(result.nodes().size(), 2u) << print(result);
}

TEST(FoldConstants, AddingZeroStaysBecauseOfMinusZero) {
  Graph graph;
  graph.output("y", neg(input(graph) + 0.0));
  EXPECT_EQ(count(folded(graph), Op::Add), 1);
}

TEST(FoldConstants, AFactorThatBroadcastsItsOperandStays) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, Shape{1}});
  graph.output("y", neg(x * broadcast_to(graph.scalar(1.0), Shape{5})));
  EXPECT_EQ(count(folded(graph), Op::Mul), 1);
}

TEST(FoldConstants, LargeResultsOfSmallConstantsAreNotKept) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, Shape{1000, 1000}});
  graph.output("y", exp(x) * broadcast_to(graph.scalar(2.0), Shape{1000, 1000}));
  EXPECT_EQ(count(folded(graph), Op::BroadcastTo), 1);
}

TEST(FoldConstants, AnOutputOfAVariableTimesOneIsItsValueBeforeTheStep) {
  const auto counter = std::make_shared<Variable>();
  counter->name = "counter";
  Graph graph;
  const Value before = graph.variable(counter);
  graph.output("y", before * 1.0);
  assign(counter, before + 1.0);
  optimize(graph, cpu_kernels());
  State state(host(), 1);
  Executor executor(make_plan(std::move(graph), cpu_kernels()), cpu_kernels(), state);
  for (int step = 0; step < 3; ++step) {
    executor.run();
    EXPECT_EQ(executor.output("y").item(), step);
  }
}

TEST(FoldConstants, SixteenBitFloatsAreRoundedAsInAStep) {
  for (const DType dtype : {DType::F16, DType::BF16}) {
    Graph graph;
    const Value third = graph.scalar(1.0) / graph.scalar(3.0);
    const Value rounded = cast(third, dtype) * graph.scalar(7.0, dtype);
    graph.output("y", input(graph) * cast(rounded, DType::F32));
    EXPECT_EQ(count(folded(graph), Op::Cast), 0);
  }
}

}  // namespace
}  // namespace lockstep
