#include "lockstep/passes/precision.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/base/error.h"
#include "lockstep/base/half.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/ops.h"
#include "lockstep/passes/dead_code.h"
#include "lockstep/passes/pipeline.h"
#include "zero_variable.h"

namespace lockstep {
namespace {

void round(Graph& graph, DType dtype = DType::F16) {
  std::vector<std::unique_ptr<Pass>> passes;
  passes.push_back(std::make_unique<MixedPrecision>(dtype));
  passes.push_back(std::make_unique<DeadCode>());
  run_passes(graph, passes);
}

std::vector<Node> all(const Graph& graph, Op op) {
  std::vector<Node> nodes;
  std::ranges::copy_if(graph.nodes(), std::back_inserter(nodes),
                       [&](const Node& node) { return node.op == op; });
  return nodes;
}

DType in_dtype(const Graph& graph, const Node& node, std::size_t i = 0) {
  return graph.type(node.inputs[i]).dtype;
}
DType out_dtype(const Graph& graph, const Node& node, std::size_t i = 0) {
  return graph.type(node.outputs[i]).dtype;
}

// A step of a small convolutional network: forward pass, loss, gradients, their all-reduce, and a
// plain update.
Graph training_step() {
  Graph graph;
  const VariableRef filter = zero_variable("conv/kernel", {3, 3, 2, 4});
  const VariableRef gamma = zero_variable("norm/gamma", {4});
  const VariableRef beta = zero_variable("norm/beta", {4});
  const VariableRef mean = zero_variable("norm/mean", {4});
  const VariableRef kernel = zero_variable("dense/kernel", {4, 3});
  const VariableRef bias = zero_variable("dense/bias", {3});
  const Value images = graph.input("images", {DType::F32, {5, 8, 8, 2}});
  const Value labels = graph.input("labels", {DType::I32, {5}});
  const auto v = [&](const VariableRef& variable) { return graph.variable(variable); };

  const Value convolved = conv2d(images, v(filter));
  const BatchNormResult norm = batch_norm(convolved, v(gamma), v(beta));
  assign(mean, add(mul(v(mean), 0.9), mul(norm.mean, 0.1)));
  const Value pooled = max_pool(relu(norm.y));
  const Value features = reduce_mean(pooled, {.axes = {1, 2}});
  const Value logits = matmul(features, v(kernel), v(bias));
  const Value loss = reduce_sum(sparse_cross_entropy(logits, labels));
  graph.output("logits", logits);
  graph.output("loss", loss);

  const std::vector<VariableRef> parameters{filter, gamma, beta, kernel, bias};
  std::vector<Value> targets;
  for (const VariableRef& parameter : parameters) targets.push_back(v(parameter));
  const std::vector<Value> sums = all_reduce_gradients(gradients(loss, targets));
  update({.rate = graph.scalar(0.1),
          .scale = graph.scalar(1.0),
          .step = graph.scalar(1, DType::I64),
          .parameters = targets,
          .gradients = sums,
          .slots = {}},
         "sgd", {});
  return graph;
}

class InBothTypes : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, InBothTypes, ::testing::Values(DType::F16, DType::BF16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(InBothTypes, OnlyProductsAndActivationsHaveSixteenBits) {
  const DType small = GetParam();
  Graph graph = training_step();
  round(graph, small);
  for (const Op op : {Op::Conv2D, Op::Conv2DGradFilter, Op::MatMul, Op::Activation,
                      Op::ActivationGrad, Op::MaxPool, Op::MaxPoolGrad, Op::ReduceMean}) {
    ASSERT_FALSE(all(graph, op).empty()) << op_def(op).name;
    for (const Node& node : all(graph, op)) {
      EXPECT_EQ(in_dtype(graph, node), small) << op_def(op).name;
      EXPECT_EQ(out_dtype(graph, node), small) << op_def(op).name;
    }
  }
  const Node norm = all(graph, Op::BatchNorm).at(0);
  EXPECT_EQ(in_dtype(graph, norm, 0), small);
  EXPECT_EQ(in_dtype(graph, norm, 1), DType::F32);
  EXPECT_EQ(out_dtype(graph, norm, 0), small);
  EXPECT_EQ(out_dtype(graph, norm, 1), DType::F32);
  const Node norm_grad = all(graph, Op::BatchNormGrad).at(0);
  EXPECT_EQ(in_dtype(graph, norm_grad, 0), small);
  EXPECT_EQ(in_dtype(graph, norm_grad, 1), small);
  EXPECT_EQ(out_dtype(graph, norm_grad, 0), small);
  EXPECT_EQ(out_dtype(graph, norm_grad, 1), DType::F32);
  for (const Op op : {Op::SparseCrossEntropy, Op::SparseCrossEntropyGrad, Op::ReduceSum,
                      Op::AllReduce, Op::Variable}) {
    ASSERT_FALSE(all(graph, op).empty()) << op_def(op).name;
    for (const Node& node : all(graph, op)) EXPECT_EQ(out_dtype(graph, node), DType::F32);
  }
  const Node updates = all(graph, Op::Update).at(0);
  for (std::size_t i = 3; i < updates.inputs.size(); ++i) {
    EXPECT_EQ(in_dtype(graph, updates, i), DType::F32);
  }
}

TEST(MixedPrecision, InputsAndOutputsKeepTheirTypes) {
  Graph graph = training_step();
  round(graph);
  EXPECT_EQ(graph.type(graph.input_id("images")).dtype, DType::F32);
  EXPECT_EQ(graph.type(graph.output_id("logits")).dtype, DType::F32);
  EXPECT_EQ(graph.type(graph.output_id("loss")).dtype, DType::F32);
}

TEST(MixedPrecision, AValueIsCastOnceAndNeverBackAndForth) {
  Graph graph = training_step();
  round(graph);
  std::set<ValueId> cast_from;
  for (const Node& node : all(graph, Op::Cast)) {
    EXPECT_TRUE(cast_from.insert(node.inputs[0]).second) << print(graph);
    EXPECT_NE(graph.producer(node.inputs[0]).op, Op::Cast) << print(graph);
  }
  EXPECT_TRUE(cast_from.contains(graph.input_id("images")));
  // The filter, although both its convolution and the gradient read it; dense kernel and bias.
  const auto weights = std::ranges::count_if(
      cast_from, [&](ValueId id) { return graph.producer(id).op == Op::Variable; });
  EXPECT_EQ(weights, 3);
}

// So that its all-reduce can begin while the backward pass continues.
TEST(MixedPrecision, AGradientIsWidenedAsSoonAsItIsComputed) {
  Graph graph = training_step();
  round(graph);
  const Node dense_grad = [&] {
    for (const Node& node : all(graph, Op::MatMul)) {
      if (graph.type(node.outputs[0]).shape == Shape{4, 3}) return node;
    }
    return Node();
  }();
  ASSERT_EQ(dense_grad.outputs.size(), 1u);
  const std::vector<Node>& nodes = graph.nodes();
  const auto place = std::ranges::find_if(
      nodes, [&](const Node& node) { return node.outputs == dense_grad.outputs; });
  ASSERT_NE(place, nodes.end());
  ASSERT_NE(place + 1, nodes.end());
  EXPECT_EQ((place + 1)->op, Op::Cast);
  EXPECT_EQ((place + 1)->inputs, dense_grad.outputs);
}

TEST(MixedPrecision, ComputedF32InputsKeepAnOpInF32AndVariablesDoNot) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {4, 4}});
  const Value small = matmul(x, x);
  const Value bias = graph.variable(zero_variable("bias", {4}));
  graph.output("biased", add(small, reshape(bias, {1, 4})));
  graph.output("mixed", sub(small, reduce_sum(small)));
  graph.output("doubled", mul(x, 2.0));
  graph.output("weight", mul(bias, 2.0));
  round(graph);
  const auto producer = [&](const char* name) {
    const Node node = graph.producer(graph.output_id(name));
    return node.op == Op::Cast ? graph.producer(node.inputs[0]) : node;
  };
  EXPECT_EQ(out_dtype(graph, producer("biased")), DType::F16);
  EXPECT_EQ(out_dtype(graph, producer("mixed")), DType::F32);
  EXPECT_EQ(out_dtype(graph, producer("doubled")), DType::F32);
  EXPECT_EQ(out_dtype(graph, producer("weight")), DType::F32);
}

TEST(MixedPrecision, AConstantThatIsTooLargeOrTooSmallKeepsItsOpInF32) {
  const auto dtype_with = [](double constant, DType small) {
    Graph graph;
    const Value x = graph.input("x", {DType::F32, {4, 4}});
    graph.output("y", relu(add(matmul(x, x), constant)));
    round(graph, small);
    return out_dtype(graph, all(graph, Op::Activation).at(0));
  };
  EXPECT_EQ(dtype_with(1.0 / 3, DType::F16), DType::F16);
  EXPECT_EQ(dtype_with(-1e9, DType::F16), DType::F32);
  EXPECT_EQ(dtype_with(1e-9, DType::F16), DType::F32);
  EXPECT_EQ(dtype_with(0x1p-20, DType::F16), DType::F32);  // exact, but its products are not
  EXPECT_EQ(dtype_with(-1e9, DType::BF16), DType::BF16);
}

TEST(MixedPrecision, ConstantsAreRoundedInTheGraph) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {4, 4}});
  graph.output("y", mul(matmul(x, x), 0.1));
  round(graph);
  const Node product = all(graph, Op::Mul).at(0);
  const Node& constant = graph.producer(product.inputs[1]);
  ASSERT_EQ(constant.op, Op::Constant);
  EXPECT_EQ(constant.constant.item(), static_cast<float>(Half(0.1)));
}

TEST(MixedPrecision, FullPrecisionKeepsAnActivationOfALossInF32) {
  const auto build = [](bool full) {
    Graph graph;
    const Value x = graph.input("x", {DType::F32, {4, 4}});
    const Value logits = matmul(x, x);
    graph.output("y", reduce_sum(softplus(full ? full_precision(logits) : logits)));
    return graph;
  };
  Graph marked = build(true);
  round(marked);
  EXPECT_EQ(out_dtype(marked, all(marked, Op::Activation).at(0)), DType::F32);
  Graph plain = build(false);
  round(plain);
  EXPECT_EQ(out_dtype(plain, all(plain, Op::Activation).at(0)), DType::F16);
  // In a step in f32 it is removed.
  Graph whole = build(true);
  EXPECT_EQ(all(whole, Op::Cast).size(), 1u);
  DeadCode().run(whole);
  verify(whole);
  EXPECT_TRUE(all(whole, Op::Cast).empty());
}

TEST(MixedPrecision, RowsOfATableAreRoundedAndItsGradientIsSummedInF32) {
  Graph graph;
  const VariableRef table = zero_variable("embedding", {10, 4});
  const Value indices = graph.input("indices", {DType::I32, {6}});
  const Value rows = gather(graph.variable(table), indices);
  const Value loss = reduce_sum(relu(rows));
  const std::vector<Value> targets{graph.variable(table)};
  graph.output("gradient", gradients(loss, targets)[0]);
  round(graph);
  EXPECT_EQ(in_dtype(graph, all(graph, Op::Gather).at(0)), DType::F32);
  EXPECT_EQ(in_dtype(graph, all(graph, Op::Activation).at(0)), DType::F16);
  EXPECT_EQ(in_dtype(graph, all(graph, Op::GatherGrad).at(0)), DType::F32);
  for (const Node& node : all(graph, Op::Cast)) {
    EXPECT_NE(graph.producer(node.inputs[0]).op, Op::Variable) << "the whole table is rounded";
  }
}

TEST(MixedPrecision, DoublesAndIntegersAreUnchanged) {
  Graph graph;
  const Value x = graph.input("x", {DType::F64, {4, 4}});
  const Value n = graph.input("n", {DType::I64, {4}});
  graph.output("y", matmul(x, x));
  graph.output("m", add(n, n));
  const std::string before = print(graph);
  round(graph);
  EXPECT_EQ(print(graph), before);
}

TEST(MixedPrecision, NamesMatchKeras) {
  EXPECT_EQ(precision_by_name("test", "float32"), std::nullopt);
  EXPECT_EQ(precision_by_name("test", "mixed_float16"), DType::F16);
  EXPECT_EQ(precision_by_name("test", "mixed_bfloat16"), DType::BF16);
  EXPECT_THROW(precision_by_name("test", "float16"), UsageError);
}

}  // namespace
}  // namespace lockstep
