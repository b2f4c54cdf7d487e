#include "lockstep/passes/pipeline.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/base/error.h"
#include "lockstep/graph/ops/ops.h"
#include "passes/graph_checks.h"

namespace lockstep {
namespace {

double distance(const Tensor& a, const Tensor& b) {
  double square = 0.0;
  double norm = 0.0;
  for (std::size_t i = 0; i < a.values<float>().size(); ++i) {
    const double difference = a.values<float>()[i] - b.values<float>()[i];
    square += difference * difference;
    norm += static_cast<double>(b.values<float>()[i]) * b.values<float>()[i];
  }
  return std::sqrt(square / (norm + 1e-30));
}

// Expects the graph after the passes, with the backend's kernels, to give the same results as the
// traced graph with the reference kernels.
void expect_same(const std::function<void(Graph&)>& build, Graph& optimized) {
  Graph plain;
  build(plain);
  const auto expected = run_on_random_inputs(std::move(plain), reference_kernels());
  build(optimized);
  optimize(optimized, cpu_kernels());
  Graph copy;
  build(copy);
  optimize(copy, cpu_kernels());
  const auto actual = run_on_random_inputs(std::move(copy), cpu_kernels());
  for (const auto& [name, tensor] : expected) {
    EXPECT_LT(distance(actual.at(name), tensor), 1e-5) << name;
  }
}

// A residual block: relu(norm(conv(x)) + shortcut), with its gradients as outputs.
void residual_block(Graph& graph, bool projected) {
  const Value x = graph.input("x", {DType::F32, Shape{2, 6, 6, 16}});
  const auto weight = [&](const char* name, Shape shape) {
    return graph.input(name, {DType::F32, std::move(shape)});
  };
  const Value w = weight("w", {3, 3, 16, 16});
  const Value gamma = weight("gamma", {16});
  const Value beta = weight("beta", {16});
  const BatchNormResult main =
      batch_norm(conv2d(x, w, {.padding = {1, 1, 1, 1}}), gamma, beta, 1e-5);
  std::vector<Value> targets = {x, w, gamma, beta};
  Value shortcut = x;
  if (projected) {
    const Value v = weight("v", {1, 1, 16, 16});
    const Value scale = weight("scale", {16});
    const Value shift = weight("shift", {16});
    shortcut = batch_norm(conv2d(x, v), scale, shift, 1e-5).y;
    targets.insert(targets.end(), {v, scale, shift});
  }
  const Value y = relu(main.y + shortcut);
  graph.output("y", y);
  graph.output("mean", main.mean);
  const Value loss = reduce_sum(square(y));
  const std::vector<Value> grads = gradients(loss, targets);
  for (std::size_t i = 0; i < grads.size(); ++i) graph.output(fmt::format("d{}", i), grads[i]);
}

TEST(Fuse, NormAdditionAndReluBecomeOneNodeForwardAndBackward) {
  Graph graph;
  expect_same([](Graph& g) { residual_block(g, false); }, graph);
  EXPECT_EQ(count(graph, Op::BatchNorm), 1);
  EXPECT_EQ(count(graph, Op::Activation), 0);
  EXPECT_EQ(count(graph, Op::ActivationGrad), 0);
  EXPECT_EQ(only(graph, Op::BatchNorm).inputs.size(), 4u);
  EXPECT_EQ(only(graph, Op::BatchNormGrad).outputs.size(), 4u);
}

TEST(Fuse, AnAdditionOfTwoNormsIsFusedIntoOneOfThem) {
  Graph graph;
  expect_same([](Graph& g) { residual_block(g, true); }, graph);
  EXPECT_EQ(count(graph, Op::BatchNorm), 2);
  EXPECT_EQ(count(graph, Op::Activation), 0);
}

TEST(Fuse, ReluAndItsMaskAreAppliedAfterMaxPool) {
  Graph graph;
  expect_same(
      [](Graph& g) {
        const Value x = g.input("x", {DType::F32, Shape{3, 8, 8, 1}});
        const Value w = g.input("w", {DType::F32, Shape{3, 3, 1, 16}});
        const Value b = g.input("b", {DType::F32, Shape{16}});
        const Value y = max_pool(relu(conv2d(x, w, b, {.padding = {1, 1, 1, 1}})));
        g.output("y", y);
        const std::vector<Value> targets = {w, b};
        const std::vector<Value> grads = gradients(reduce_sum(square(y)), targets);
        g.output("dw", grads[0]);
        g.output("db", grads[1]);
      },
      graph);
  EXPECT_EQ(graph.type(only(graph, Op::Activation).outputs[0]).shape, (Shape{3, 4, 4, 16}));
  const Node& mask = only(graph, Op::ActivationGrad);
  EXPECT_EQ(graph.type(mask.outputs[0]).shape, (Shape{3, 4, 4, 16}));
}

TEST(Fuse, AnActivationWhoseInputIsReadElsewhereIsNotFused) {
  Graph graph;
  expect_same(
      [](Graph& g) {
        const Value x = g.input("x", {DType::F32, Shape{4, 8}});
        const Value w = g.input("w", {DType::F32, Shape{8, 8}});
        const Value hidden = matmul(x, w);
        g.output("y", relu(hidden));
        g.output("hidden", hidden);
      },
      graph);
  EXPECT_EQ(count(graph, Op::Activation), 1);
}

TEST(Layout, ConvolutionsKeepTheirLayoutFromLayerToLayer) {
  Graph graph;
  expect_same(
      [](Graph& g) {
        Value x = g.input("x", {DType::F32, Shape{2, 8, 8, 16}});
        for (int i = 0; i < 4; ++i) {
          const Value w = g.input(fmt::format("w{}", i), {DType::F32, Shape{3, 3, 16, 16}});
          x = relu(conv2d(x, w, {.padding = {1, 1, 1, 1}}));
        }
        g.output("y", x);
      },
      graph);
  // One for x, one per filter (an input here), one for the result: none between the layers.
  EXPECT_LE(count(graph, Op::Reorder), 6);
}

TEST(Layout, WeightsHaveTheConvolutionsLayoutAndAreUpdatedInIt) {
  auto kernel = std::make_shared<Variable>();
  kernel->name = "kernel";
  kernel->shape = Shape{3, 3, 16, 16};
  Graph graph;
  const Value x = graph.input("x", {DType::F32, Shape{2, 8, 8, 16}});
  const Value w = graph.variable(kernel);
  const Value loss = reduce_sum(conv2d(x, w, {.padding = {1, 1, 1, 1}}));
  UpdateInputs inputs;
  inputs.rate = graph.scalar(0.1);
  inputs.scale = graph.scalar(1.0);
  inputs.step = graph.scalar(1, DType::I64);
  inputs.parameters = {w};
  inputs.gradients = gradients(loss, std::vector<Value>{w});
  update(inputs, "sgd", {{"momentum", 0.0}, {"nesterov", false}});
  optimize(graph, cpu_kernels());
  const Node& change = only(graph, Op::Update);
  EXPECT_EQ(graph.producer(change.inputs[3]).op, Op::Variable);
  EXPECT_EQ(graph.info(change.inputs[3]).layout, graph.info(change.inputs[4]).layout);

  // A second graph must take the weights in their layout.
  const Layout chosen = graph.info(change.inputs[3]).layout;
  Graph second;
  second.output("y", conv2d(second.input("x", {DType::F32, Shape{1, 8, 8, 16}}),
                            second.variable(kernel), {.padding = {1, 1, 1, 1}}));
  optimize(second, reference_kernels(), [&](const Variable&) { return chosen; });
  EXPECT_EQ(second.info(only(second, Op::Variable).outputs[0]).layout, chosen);
}

TEST(DeadCode, UnreadNodesAreRemovedAndEffectsStay) {
  auto counter = std::make_shared<Variable>();
  counter->name = "counter";
  Graph graph;
  const Value x = graph.input("x", {DType::F32, Shape{4}});
  exp(x);
  assign(counter, graph.variable(counter) + 1.0);
  graph.output("y", neg(x));
  optimize(graph, reference_kernels());
  EXPECT_EQ(count(graph, Op::Exp), 0);
  EXPECT_EQ(count(graph, Op::Assign), 1);
  EXPECT_EQ(count(graph, Op::Neg), 1);
}

class Breaking final : public Pass {
 public:
  std::string_view name() const override { return "breaking"; }
  void run(Graph& graph) override { graph.info(graph.output_id("y")).type.shape = Shape{1, 2, 3}; }
};

TEST(Pipeline, APassThatBreaksTheGraphIsNamed) {
  Graph graph;
  graph.output("y", neg(graph.input("x", {DType::F32, Shape{4}})));
  std::vector<std::unique_ptr<Pass>> passes;
  passes.push_back(std::make_unique<Breaking>());
  try {
    run_passes(graph, passes);
    FAIL() << "a broken graph was accepted";
  } catch (const InternalError& error) {
    EXPECT_NE(std::string(error.what()).find("breaking"), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
