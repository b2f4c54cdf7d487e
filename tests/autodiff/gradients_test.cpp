#include "lockstep/autodiff/gradients.h"

#include <gtest/gtest.h>

#include "kernels/evaluate.h"
#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"

namespace lockstep {
namespace {

using Floats = std::vector<float>;
using Inputs = std::span<const Value>;

// The values of d(sum of loss) / d(each input).
std::vector<Tensor> gradients_at(const std::vector<Tensor>& inputs,
                                 const std::function<Value(Inputs)>& loss) {
  return evaluate_all(inputs, [&](Inputs in) { return gradients(loss(in), in); });
}

int count_ops(const Graph& graph, Op op) {
  int count = 0;
  for (const Node& node : graph.nodes()) count += node.op == op;
  return count;
}

TEST(Gradients, FollowTheChainRule) {
  const auto grads = gradients_at({floats({0.5f, 2})}, [](Inputs in) {
    return reduce_sum(exp(square(in[0])));  // 2x exp(x²)
  });
  EXPECT_FLOAT_EQ(grads[0].values<float>()[0], std::exp(0.25f));
  EXPECT_FLOAT_EQ(grads[0].values<float>()[1], 4 * std::exp(4.0f));
}

TEST(Gradients, OfANonScalarLossAreThoseOfItsSum) {
  const auto grads = gradients_at({floats({3, 4})}, [](Inputs in) { return square(in[0]); });
  EXPECT_EQ(list<float>(grads[0]), (Floats{6, 8}));
}

TEST(Gradients, AddUpOverAllUsesOfAValue) {
  const auto grads = gradients_at({floats({3, 5})}, [](Inputs in) {
    const Value x = in[0];
    return reduce_sum(x * x + x * 7.0 + x);
  });
  EXPECT_EQ(list<float>(grads[0]), (Floats{14, 18}));
}

TEST(Gradients, OfBroadcastValuesAreSummed) {
  const auto grads = gradients_at({floats({1, 2, 3, 4, 5, 6}, {2, 3}), floats({1, 10, 100})},
                                  [](Inputs in) { return reduce_sum(in[0] * in[1]); });
  EXPECT_EQ(list<float>(grads[0]), (Floats{1, 10, 100, 1, 10, 100}));
  EXPECT_EQ(list<float>(grads[1]), (Floats{5, 7, 9}));
}

TEST(Gradients, OfATargetThatTheLossDoesNotUseAreZeros) {
  const auto grads = gradients_at({floats({3, 5}), floats({1, 2, 3, 4}, {2, 2})},
                                  [](Inputs in) { return reduce_sum(in[0]); });
  EXPECT_EQ(list<float>(grads[0]), (Floats{1, 1}));
  EXPECT_EQ(list<float>(grads[1]), (Floats{0, 0, 0, 0}));
  EXPECT_EQ(grads[1].shape(), (Shape{2, 2}));
}

TEST(Gradients, CanBeTakenOfIntermediateValuesAndOfTheLossItself) {
  const auto y = evaluate_all({floats({3})}, [](Inputs in) {
    const Value middle = square(in[0]);
    const Value loss = reduce_sum(middle * middle);
    return gradients(loss, std::vector<Value>{in[0], middle, loss});
  });
  EXPECT_EQ(y[0].item(), 4 * 27);
  EXPECT_EQ(y[1].item(), 2 * 9);
  EXPECT_EQ(y[2].item(), 1);
}

TEST(Gradients, CanBeTakenTwice) {
  const Tensor second = evaluate({floats({2})}, [](Inputs in) {
    const Value cube = in[0] * in[0] * in[0];
    return gradients(gradients(cube, in)[0], in)[0];
  });
  EXPECT_EQ(second.item(), 12);
}

TEST(Gradients, DoNotFlowThroughIntegersOrBools) {
  const auto grads = gradients_at({floats({-2, 3})}, [](Inputs in) {
    const Value positive = greater(in[0], in[0].graph().scalar(0));
    return reduce_sum(in[0] * cast(positive, DType::F32));
  });
  EXPECT_EQ(list<float>(grads[0]), (Floats{0, 1}));
}

TEST(Gradients, AreAddedOnlyOnPathsToATarget) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {4}});
  const Value fixed = graph.input("fixed", {DType::F32, {4}});
  const Value loss = reduce_sum(x * exp(log(fixed)));
  const int before = count_ops(graph, Op::Div);
  gradients(loss, std::vector<Value>{x});
  EXPECT_EQ(count_ops(graph, Op::Div), before);  // log's rule would divide
  verify(graph);
}

TEST(Gradients, AreNamedAfterTheNodeTheyDifferentiate) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {4}});
  Value loss;
  {
    Graph::NameScope scope(graph, "dense_1");
    loss = reduce_sum(square(x));
  }
  const Value grad = gradients(loss, std::vector<Value>{x})[0];
  EXPECT_EQ(graph.producer(grad.id()).name, "dense_1.grad");
}

TEST(Gradients, RefuseAPathThroughAnOpThatHasNone) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {4}});
  Value loss;
  {
    Graph::NameScope scope(graph, "dense_1");
    loss = reduce_sum(activation_grad(x, x, "gelu"));
  }
  try {
    gradients(loss, std::vector<Value>{x});
    FAIL() << "an op without a gradient was differentiated";
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.rfind("[activation_grad] dense_1: ", 0), 0u) << message;
  }
}

TEST(Gradients, AnOpThatReadsNoTargetNeedsNone) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {4}});
  const Value fixed = graph.input("fixed", {DType::F32, {4}});
  const Value loss = reduce_sum(x * activation_grad(fixed, fixed, "gelu"));
  EXPECT_NO_THROW(gradients(loss, std::vector<Value>{x}));
}

TEST(Gradients, NeedAFloatingPointLossAndTarget) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {4}});
  const Value labels = graph.input("labels", {DType::I64, {4}});
  EXPECT_THROW(gradients(reduce_sum(labels), std::vector<Value>{x}), UsageError);
  EXPECT_THROW(gradients(reduce_sum(x), std::vector<Value>{labels}), UsageError);
  EXPECT_THROW(gradients(Value(), std::vector<Value>{x}), UsageError);
}

}  // namespace
}  // namespace lockstep
