// Additional outputs that a backend offers, and which nodes then use them. A backend that offers
// everything stands in for a GPU's.
#include "lockstep/passes/reuse_statistics.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/offering_kernels.h"
#include "lockstep/autodiff/gradients.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/passes/fuse_casts.h"
#include "lockstep/passes/pipeline.h"
#include "passes/graph_checks.h"
#include "zero_variable.h"

namespace lockstep {
namespace {

class Generous final : public Backend {
 public:
  explicit Generous(bool offers) : offers_(offers) {}
  NodeLayouts layouts(const Graph&, const Node& node) const override {
    return {std::vector<Layout>(node.inputs.size()), std::vector<Layout>(node.outputs.size())};
  }
  bool fuses_activation(const Graph&, const Node&, std::string_view) const override { return true; }
  bool offers(const Graph&, const Node&, std::string_view) const override { return offers_; }
  std::size_t workspace_bytes(const Graph&, const Node&) const override { return 0; }

 private:
  bool offers_;
};

Graph optimized(Graph graph, bool offers) {
  optimize(graph, Generous(offers));
  return graph;
}

std::vector<const Node*> nodes_of(const Graph& graph, Op op) {
  std::vector<const Node*> nodes;
  for (const Node& node : graph.nodes()) {
    if (node.op == op) nodes.push_back(&node);
  }
  return nodes;
}

// norm(conv(x)), and the values that gradients are taken of.
struct Normed {
  BatchNormResult norm;
  std::vector<Value> targets;
};
Normed norm_of_conv(Graph& graph, Value x, const std::string& name = "") {
  const Value w = graph.input(name + "w", {DType::F16, Shape{1, 1, 16, 16}});
  const Value gamma = graph.input(name + "gamma", {DType::F32, Shape{16}});
  const Value beta = graph.input(name + "beta", {DType::F32, Shape{16}});
  return {batch_norm(conv2d(x, w), gamma, beta), {x, w, gamma, beta}};
}

void ask_for_gradients(Graph& graph, Value y, const std::vector<Value>& targets) {
  const std::vector<Value> grads = gradients(reduce_sum(full_precision(y)), targets);
  for (std::size_t i = 0; i < grads.size(); ++i) graph.output(fmt::format("d{}", i), grads[i]);
}

// relu(norm(conv(x)) (+ x)) with its gradients.
Graph block(bool residual) {
  Graph graph;
  const Value x = graph.input("x", {DType::F16, Shape{2, 6, 6, 16}});
  const Normed normed = norm_of_conv(graph, x);
  const BatchNormResult& norm = normed.norm;
  const Value y = relu(residual ? norm.y + x : norm.y);
  graph.output("y", y);
  ask_for_gradients(graph, y, normed.targets);
  return graph;
}

TEST(ReuseStatistics, AConvolutionGivesTheNextNormItsStatistics) {
  const Graph graph = optimized(block(false), true);
  const Node& conv = only(graph, Op::Conv2D);
  const Node& norm = only(graph, Op::BatchNorm);
  ASSERT_EQ(conv.outputs.size(), 3u);
  EXPECT_EQ(graph.type(conv.outputs[1]), (ValueType{DType::F32, Shape{16}}));
  ASSERT_EQ(norm.inputs.size(), 5u);
  EXPECT_EQ(norm.inputs[3], conv.outputs[1]);
  EXPECT_EQ(norm.inputs[4], conv.outputs[2]);
}

TEST(ReuseStatistics, ANormWithAResidualGivesItsGradientTheMaskAsBits) {
  const Graph graph = optimized(block(true), true);
  const Node& norm = only(graph, Op::BatchNorm);
  const Node& grad = only(graph, Op::BatchNormGrad);
  ASSERT_EQ(norm.outputs.size(), 4u);
  EXPECT_EQ(graph.type(norm.outputs[3]), (ValueType{DType::U8, Shape{2, 6, 6, 2}}));
  EXPECT_EQ(norm.inputs.size(), 6u);
  EXPECT_EQ(grad.inputs[5], norm.outputs[3]);
}

TEST(ReuseStatistics, WithoutAResidualTheMaskIsComputedFromBetaInsteadOfTheResult) {
  const Graph graph = optimized(block(false), true);
  const Node& norm = only(graph, Op::BatchNorm);
  const Node& grad = only(graph, Op::BatchNormGrad);
  EXPECT_EQ(norm.outputs.size(), 3u);
  EXPECT_EQ(grad.inputs[5], norm.inputs[2]);
  EXPECT_EQ(std::ranges::count(grad.inputs, norm.outputs[0]), 0);
}

// relu(norm(conv(x)) + norm(conv(x))) with its gradients.
Graph projected_block() {
  Graph graph;
  const Value x = graph.input("x", {DType::F16, Shape{2, 6, 6, 16}});
  std::vector<Value> targets = {x};
  const auto side = [&](const std::string& name) {
    const Normed normed = norm_of_conv(graph, x, name);
    targets.insert(targets.end(), normed.targets.begin() + 1, normed.targets.end());
    return normed.norm;
  };
  const BatchNormResult main = side("a");
  const BatchNormResult shortcut = side("b");
  const Value y = relu(main.y + shortcut.y);
  for (const Value& value : {y, main.mean, shortcut.mean, shortcut.variance}) {
    graph.output(fmt::format("y{}", value.id()), value);
  }
  ask_for_gradients(graph, y, targets);
  return graph;
}

TEST(Fuse, TwoAddedNormsBecomeOneIfOffered) {
  const Graph graph = optimized(projected_block(), true);
  const auto convs = nodes_of(graph, Op::Conv2D);
  const Node& norm = only(graph, Op::BatchNorm);
  const Node& grad = only(graph, Op::BatchNormGrad);
  ASSERT_EQ(convs.size(), 2u);
  ASSERT_EQ(norm.inputs.size(), 10u);  // both with their sums
  EXPECT_EQ(norm.inputs[3], convs[norm.inputs[0] == convs[0]->outputs[0] ? 1 : 0]->outputs[0]);
  EXPECT_EQ(graph.producer(norm.inputs[6]).outputs[0], norm.inputs[0]);
  EXPECT_EQ(graph.producer(norm.inputs[8]).outputs[0], norm.inputs[3]);
  EXPECT_EQ(norm.outputs.size(), 6u);
  EXPECT_EQ(grad.inputs[5], norm.outputs[5]);
  EXPECT_EQ(grad.inputs[6], norm.inputs[3]);
  EXPECT_EQ(grad.inputs[7], norm.outputs[3]);
  EXPECT_EQ(grad.outputs.size(), 6u);
  EXPECT_TRUE(nodes_of(graph, Op::ActivationGrad).empty());
  EXPECT_EQ(nodes_of(optimized(projected_block(), false), Op::BatchNorm).size(), 2u);
}

// max_pool(relu(norm(conv(x)))) with its gradients, where y's has two summands; if `seen`, the
// image before pooling is an output.
Graph pooled_block(bool seen) {
  Graph graph;
  const Value x = graph.input("x", {DType::F16, Shape{2, 6, 6, 16}});
  const Normed normed = norm_of_conv(graph, x);
  const BatchNormResult& norm = normed.norm;
  const Value image = relu(norm.y);
  const Value pooled =
      max_pool(image, {.window = {3, 3}, .strides = {2, 2}, .padding = {1, 1, 1, 1}});
  const Value y = pooled * exp(pooled);
  graph.output("y", y);
  graph.output("mean", norm.mean);
  if (seen) graph.output("image", image);
  ask_for_gradients(graph, y, normed.targets);
  return graph;
}

TEST(Fuse, NormReluAndMaxPoolBecomeOneIfOffered) {
  const Graph graph = optimized(pooled_block(false), true);
  const Node& conv = only(graph, Op::Conv2D);
  const Node& norm = only(graph, Op::BatchNorm);
  const Node& grad = only(graph, Op::BatchNormGrad);
  EXPECT_EQ(norm.inputs.size(), 5u);  // with the convolution's sums
  ASSERT_EQ(norm.outputs.size(), 5u);
  const Shape windows{2, 3, 3, 16};
  EXPECT_EQ(graph.type(norm.outputs[0]), (ValueType{DType::F16, windows}));
  EXPECT_EQ(graph.type(norm.outputs[3]), (ValueType{DType::U8, windows}));
  EXPECT_EQ(graph.type(norm.outputs[4]), (ValueType{DType::F16, windows}));
  ASSERT_EQ(grad.inputs.size(), 9u);  // the other summand comes last
  EXPECT_EQ(graph.type(grad.inputs[0]), (ValueType{DType::F16, windows}));
  EXPECT_EQ(grad.inputs[1], conv.outputs[0]);
  EXPECT_EQ(grad.inputs[2], norm.outputs[1]);
  EXPECT_EQ(grad.inputs[3], norm.outputs[2]);
  EXPECT_EQ(grad.inputs[4], norm.inputs[1]);
  EXPECT_EQ(grad.inputs[5], norm.inputs[2]);
  EXPECT_EQ(grad.inputs[6], norm.outputs[3]);
  EXPECT_EQ(grad.inputs[7], norm.outputs[4]);
  EXPECT_EQ(graph.type(grad.outputs[0]), graph.type(conv.outputs[0]));
  for (const Op gone : {Op::Activation, Op::ActivationGrad, Op::MaxPool, Op::MaxPoolGrad}) {
    EXPECT_TRUE(nodes_of(graph, gone).empty());
  }
}

TEST(Fuse, AnImageWithAnotherReaderIsPooledSeparately) {
  const Graph graph = optimized(pooled_block(true), true);
  EXPECT_FALSE(only(graph, Op::BatchNorm).attrs.has("pool"));
  EXPECT_FALSE(only(graph, Op::BatchNormGrad).attrs.has("pool"));
  EXPECT_EQ(graph.producer(graph.output_id("image")).op, Op::BatchNorm);
  EXPECT_EQ(nodes_of(graph, Op::MaxPool).size(), 1u);
  EXPECT_EQ(nodes_of(graph, Op::MaxPoolGrad).size(), 1u);
}

TEST(Fuse, PoolingIsNotFusedIfTheKernelDoesNotOfferIt) {
  const Graph graph = optimized(pooled_block(false), false);
  EXPECT_FALSE(only(graph, Op::BatchNorm).attrs.has("pool"));
  EXPECT_EQ(nodes_of(graph, Op::MaxPool).size(), 1u);
  EXPECT_EQ(nodes_of(graph, Op::MaxPoolGrad).size(), 1u);
}

TEST(ReuseStatistics, NothingIsReusedUnlessItIsOffered) {
  const Graph graph = optimized(block(true), false);
  EXPECT_EQ(only(graph, Op::Conv2D).outputs.size(), 1u);
  EXPECT_EQ(only(graph, Op::BatchNorm).inputs.size(), 4u);
  EXPECT_EQ(only(graph, Op::BatchNorm).outputs.size(), 3u);
  EXPECT_EQ(only(graph, Op::BatchNormGrad).inputs[5], only(graph, Op::BatchNorm).outputs[0]);
}

// Two weights in 16 bits; the results computed with them are read in f32 by one node.
Graph weighted() {
  Graph graph;
  const Value x = graph.input("x", {DType::F16, Shape{4, 8}});
  const Value u = cast(graph.variable(zero_variable("u", {8, 8})), DType::F16);
  const Value a = matmul(x, u);
  const Value v = cast(graph.variable(zero_variable("v", {8, 8})), DType::F16);
  const Value b = matmul(a, v);
  graph.output("sum", add(cast(a, DType::F32), cast(b, DType::F32)));
  return graph;
}

TEST(FuseCasts, CastsOfVariablesAndCastsWithTheSameReaderBecomeOneEach) {
  Graph graph = weighted();
  FuseCasts(Generous(true)).run(graph);
  verify(graph);
  const auto casts = nodes_of(graph, Op::Cast);
  ASSERT_EQ(casts.size(), 2u);
  for (const Node* cast : casts) {
    EXPECT_EQ(cast->inputs.size(), 2u);
    EXPECT_EQ(cast->outputs.size(), 2u);
  }
  EXPECT_EQ(graph.type(casts[0]->outputs[1]), (ValueType{DType::F16, Shape{8, 8}}));
  EXPECT_TRUE(std::ranges::is_permutation(only(graph, Op::Add).inputs, casts[1]->outputs));
}

TEST(FuseCasts, NothingIsFusedIfTheBackendTakesNoLists) {
  Graph graph = weighted();
  FuseCasts(Generous(false)).run(graph);
  EXPECT_EQ(nodes_of(graph, Op::Cast).size(), 4u);
}

// relu(x w + b) v, with its gradients; if `read`, the gradient before the mask has another reader.
Graph two_layers(DType dtype = DType::F32, const char* kind = "relu", bool read = false) {
  Graph graph;
  const Value x = graph.input("x", {dtype, Shape{6, 5}});
  const Value w = graph.input("w", {dtype, Shape{5, 130}});
  const Value b = graph.input("b", {dtype, Shape{130}});
  const Value v = graph.input("v", {dtype, Shape{130, 3}});
  const Value y = activation(matmul(x, w, b), kind);
  const Value loss = reduce_sum(square(full_precision(matmul(y, v))));
  const std::vector<Value> targets = {w, b, v, y};
  const std::vector<Value> grads = gradients(loss, targets);
  for (std::size_t i = 0; i < grads.size() - (read ? 0 : 1); ++i) {
    graph.output(fmt::format("d{}", i), grads[i]);
  }
  return graph;
}

TEST(ReuseStatistics, AProductWithReluGivesItsGradientTheMask) {
  const Graph graph = optimized(two_layers(DType::F16), true);
  EXPECT_EQ(count(graph, Op::ActivationGrad), 0) << print(graph);
  const auto products = nodes_of(graph, Op::MatMul);
  const auto gives =
      std::ranges::find_if(products, [](auto* node) { return node->attrs.has("bits"); });
  const auto takes =
      std::ranges::find_if(products, [](auto* node) { return node->attrs.has("masked"); });
  ASSERT_TRUE(gives != products.end() && takes != products.end()) << print(graph);
  ASSERT_EQ((*gives)->outputs.size(), 2u);
  EXPECT_EQ(graph.type((*gives)->outputs[1]), (ValueType{DType::U8, Shape{6, 32}}));
  EXPECT_EQ((*takes)->inputs[2], (*gives)->outputs[1]);
}

TEST(ReuseStatistics, OtherwiseTheMaskIsASeparateNode) {
  // For another function, if the gradient before the mask is read, and if it is not offered.
  EXPECT_EQ(count(optimized(two_layers(DType::F32, "tanh"), true), Op::ActivationGrad), 1);
  EXPECT_EQ(count(optimized(two_layers(DType::F32, "relu", true), true), Op::ActivationGrad), 1);
  EXPECT_EQ(count(optimized(two_layers(), false), Op::ActivationGrad), 1);
}

TEST(ReuseStatistics, AMaskInBitsGivesTheSameGradients) {
  Graph masked = two_layers();
  optimize(masked, offering_kernels());
  EXPECT_EQ(count(masked, Op::ActivationGrad), 0) << print(masked);
  const auto have = run_on_random_inputs(std::move(masked), offering_kernels());
  const auto want = run_on_random_inputs(two_layers(), reference_kernels());
  ASSERT_EQ(have.size(), 3u);
  for (const auto& [name, tensor] : want) {
    const auto a = have.at(name).values<float>();
    const auto b = tensor.values<float>();
    ASSERT_EQ(a.size(), b.size());
    // Column sums are added up in another order.
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_NEAR(a[i], b[i], 1e-4f * std::abs(b[i]) + 1e-5f) << name << " " << i;
    }
    EXPECT_GT(std::ranges::count_if(b, [](float each) { return each != 0; }), 0) << name;
  }
}

}  // namespace
}  // namespace lockstep
