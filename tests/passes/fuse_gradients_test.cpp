// Gradients that kernels compute along with their results: when nodes are fused, and that the
// results agree with those of separate nodes.
#include "lockstep/passes/fuse_gradients.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/offering_kernels.h"
#include "lockstep/autodiff/gradients.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/passes/pipeline.h"
#include "passes/graph_checks.h"

namespace lockstep {
namespace {

// The fused graph, after checking that it gives the same results as the original.
Graph fused(const Graph& graph) {
  Graph result = clone(graph);
  optimize(result, offering_kernels());
  const auto expected = run_on_random_inputs(clone(graph), reference_kernels());
  const auto actual = run_on_random_inputs(clone(result), offering_kernels());
  for (const auto& [name, want] : expected) {
    const auto x = actual.at(name).values<float>();
    const auto y = want.values<float>();
    for (std::size_t i = 0; i < y.size(); ++i) {
      EXPECT_NEAR(x[i], y[i], 1e-5 * (1 + std::abs(y[i]))) << name << " " << i;
    }
  }
  return result;
}

struct Net {
  Value logits;
  std::vector<Value> parameters;
};

// A dense layer with five classes on inputs of this shape.
Net dense(Graph& graph, const std::string& name, Shape x) {
  const std::int64_t features = x[-1];
  const Value input = graph.input(name + "x", {DType::F32, std::move(x)});
  const Value w = graph.input(name + "w", {DType::F32, Shape{features, 5}});
  const Value b = graph.input(name + "b", {DType::F32, Shape{5}});
  return {matmul(input, w, b), {w, b}};
}

Value labels(Graph& graph, const std::string& name, Shape shape) {
  return graph.input(name, {DType::I32, std::move(shape)});
}

void give_gradients(Graph& graph, Value loss, const std::vector<Value>& parameters) {
  const std::vector<Value> grads = gradients(loss, parameters);
  for (std::size_t i = 0; i < grads.size(); ++i) graph.output(fmt::format("d{}", i), grads[i]);
}

TEST(FuseGradients, ACrossEntropyGivesItsGradientAndTheSumOfItsLosses) {
  Graph graph;
  const Net net = dense(graph, "", {6, 4});
  const Value loss = reduce_sum(sparse_cross_entropy(net.logits, labels(graph, "y", {6})));
  graph.output("loss", loss);
  give_gradients(graph, loss, net.parameters);
  const Graph result = fused(graph);
  EXPECT_TRUE(only(result, Op::SparseCrossEntropy).attrs.has("sum"));
  EXPECT_EQ(only(result, Op::SparseCrossEntropy).inputs.size(), 3u);
  EXPECT_EQ(count(result, Op::SparseCrossEntropyGrad), 0);
  EXPECT_EQ(count(result, Op::ReduceSum), 0);
}

TEST(FuseGradients, LossesThatAreReadIndividuallyStay) {
  Graph graph;
  const Net net = dense(graph, "", {6, 4});
  const Value weights = graph.input("weights", {DType::F32, Shape{6}});
  const Value losses = sparse_cross_entropy(net.logits, labels(graph, "y", {6}));
  const Value loss = reduce_sum(losses * weights);
  graph.output("losses", losses);
  give_gradients(graph, loss, net.parameters);
  const Graph result = fused(graph);
  EXPECT_FALSE(only(result, Op::SparseCrossEntropy).attrs.has("sum"));
  EXPECT_EQ(count(result, Op::SparseCrossEntropyGrad), 0);
}

TEST(FuseGradients, AGradientThatDependsOnTheLossIsNotFused) {
  Graph graph;
  const Net net = dense(graph, "", {6, 4});
  const Value losses = sparse_cross_entropy(net.logits, labels(graph, "y", {6}));
  give_gradients(graph, reduce_sum(square(losses)), net.parameters);
  EXPECT_EQ(count(fused(graph), Op::SparseCrossEntropyGrad), 1);
}

TEST(FuseGradients, OneOfTwoMutuallyDependentLossesIsFused) {
  Graph graph;
  const Net a = dense(graph, "a", {6, 4});
  const Net b = dense(graph, "b", {6, 4});
  const Value first = sparse_cross_entropy(a.logits, labels(graph, "ya", {6}));
  const Value second = sparse_cross_entropy(b.logits, labels(graph, "yb", {6}));
  std::vector<Value> parameters = a.parameters;
  parameters.insert(parameters.end(), b.parameters.begin(), b.parameters.end());
  give_gradients(graph, reduce_sum(first * second), parameters);
  EXPECT_EQ(count(fused(graph), Op::SparseCrossEntropyGrad), 1);
}

TEST(FuseGradients, AProductGivesTheGradientOfTheBiasToo) {
  for (const Shape& shape : {Shape{6, 4}, Shape{2, 3, 4}}) {
    Graph graph;
    const Net net = dense(graph, "", shape);
    give_gradients(graph, reduce_sum(square(net.logits)), net.parameters);
    const Graph result = fused(graph);
    const auto sums = std::ranges::count_if(
        result.nodes(), [](const Node& node) { return node.attrs.has("column_sums"); });
    EXPECT_EQ(sums, 1) << print(result);
    EXPECT_EQ(count(result, Op::ReduceSum), 0) << print(result);
  }
}

TEST(FuseGradients, GraphsForTheCpuStayUnchanged) {
  Graph graph;
  const Net net = dense(graph, "", {6, 4});
  const Value loss = reduce_sum(sparse_cross_entropy(net.logits, labels(graph, "y", {6})));
  give_gradients(graph, loss, net.parameters);
  optimize(graph, cpu_kernels());
  EXPECT_EQ(count(graph, Op::SparseCrossEntropyGrad), 1);
  EXPECT_EQ(count(graph, Op::ReduceSum), 1) << print(graph);
}

}  // namespace
}  // namespace lockstep
