// Which scalars are computed once, and which stay apart.
#include "lockstep/passes/join_scalars.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {
namespace {

Graph joined(Graph graph) {
  JoinScalars().run(graph);
  verify(graph);
  return graph;
}

std::int64_t count(const Graph& graph, Op op) {
  return std::ranges::count(graph.nodes(), op, &Node::op);
}

TEST(JoinScalars, WhatIsMadeOfTheSameNumbersIsMadeOnce) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {}});
  Value sum = graph.scalar(0.0, DType::F32);
  for (int i = 0; i < 5; ++i) sum = sum + maximum(x, graph.scalar(1.0, DType::F32));
  graph.output("y", sum);
  graph = joined(std::move(graph));
  EXPECT_EQ(count(graph, Op::Maximum), 1);
  EXPECT_EQ(count(graph, Op::Add), 5);
  EXPECT_EQ(count(graph, Op::Constant), 2);
}

TEST(JoinScalars, WhatDiffersStaysApart) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {}});
  const Value many = graph.input("many", {DType::F32, Shape{3}});
  const Value numbers[] = {maximum(x, graph.scalar(1.0, DType::F32)),
                           maximum(x, graph.scalar(-0.0, DType::F32)),
                           maximum(x, graph.scalar(0.0, DType::F32)), reduce_sum(many * many, {}),
                           reduce_sum(many * many, {})};
  Value sum = x;
  for (const Value& number : numbers) sum = sum + number;
  graph.output("y", sum);
  graph = joined(std::move(graph));
  EXPECT_EQ(count(graph, Op::Maximum), 3);
  EXPECT_EQ(count(graph, Op::Mul), 2);
}

TEST(JoinScalars, ResultsAndSumsOverReplicasStayTheirOwn) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {}});
  graph.output("a", sqrt(x));
  graph.output("b", sqrt(x));
  graph.output("c", all_reduce(x));
  graph.output("d", all_reduce(x));
  graph = joined(std::move(graph));
  EXPECT_EQ(count(graph, Op::Sqrt), 2);
  EXPECT_EQ(count(graph, Op::AllReduce), 2);
}

}  // namespace
}  // namespace lockstep
