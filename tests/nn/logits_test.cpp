#include "lockstep/nn/logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/autodiff/gradients.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/matmul.h"
#include "lockstep/graph/ops/remark.h"
#include "lockstep/graph/ops/shape.h"
#include "lockstep/graph/ops/softmax.h"
#include "lockstep/nn/loss.h"
#include "nn/running.h"

namespace lockstep {
namespace {

struct Slope {
  double loss = 0;
  std::vector<float> gradient;  // of the logits
  std::vector<std::string> remarks;
};

// The loss and its gradient if `output` turns logits into predictions.
template <class Output>
Slope slope(const Loss& loss, Output output, const Tensor& logits, const Tensor& labels) {
  Graph graph;
  const Value x = graph.input("x", {logits.dtype(), logits.shape()});
  const Value y = graph.input("y", {labels.dtype(), labels.shape()});
  const LossPair pair = loss(y, output(x));
  const std::vector<std::string> found = remarks(graph);
  graph.output("loss", pair.sum);
  graph.output("gradient", gradients(pair.sum, std::vector{x})[0]);
  State state(host(), 1);
  auto results = run_step(std::move(graph), {{"x", logits}, {"y", labels}}, state);
  const std::span<const float> gradient = results["gradient"].values<float>();
  return {results["loss"].item(), {gradient.begin(), gradient.end()}, found};
}

Tensor class_1() {
  return Tensor::of(std::vector<std::int64_t>{1}, {1});
}

TEST(Logits, ASaturatedSoftmaxStillHasAGradient) {
  const Tensor logits = floats({20, 0}, {1, 2});
  const std::vector<float> whole = {1, -1};
  const Loss sparse = SparseCategoricalCrossentropy();
  for (const auto& output : std::vector<std::function<Value(Value)>>{
           [](Value x) { return softmax(x); }, [](Value x) { return full_precision(softmax(x)); },
           [](Value x) { return reshape(softmax(x), x.shape()); },
           [](Value x) {
             return reshape(softmax(reshape(x, {1, 1, 2})), {1, 2});
           }}) {
    const Slope found = slope(sparse, output, logits, class_1());
    EXPECT_NEAR(found.loss, 20, 1e-5);
    EXPECT_EQ(found.gradient, whole);
    EXPECT_TRUE(found.remarks.empty());
  }
  const Slope dense = slope(
      CategoricalCrossentropy(), [](Value x) { return softmax(x); }, logits,
      floats({0, 1}, {1, 2}));
  EXPECT_NEAR(dense.loss, 20, 1e-5);
  EXPECT_EQ(dense.gradient, whole);
}

TEST(Logits, ASaturatedSigmoidStillHasAGradient) {
  const Tensor logits = floats({30, -30}, {2, 1}), labels = floats({0, 1}, {2});
  for (const auto& output : std::vector<std::function<Value(Value)>>{
           [](Value x) { return sigmoid(x); }, [](Value x) { return reshape(sigmoid(x), {2}); }}) {
    const Slope found = slope(BinaryCrossentropy(), output, logits, labels);
    EXPECT_NEAR(found.loss, 60, 1e-4);
    EXPECT_EQ(found.gradient, (std::vector<float>{1, -1}));
  }
}

TEST(Logits, ProbabilitiesFromAnotherAxisOrOpAreUsedUnchanged) {
  // The softmax normalises along another axis than the loss, so its logits cannot be used.
  const Slope crossed = slope(
      SparseCategoricalCrossentropy(),
      [](Value x) {
        return reshape(softmax(x), {1, 2});
      },
      floats({0, 0}, {2, 1}), class_1());
  EXPECT_NEAR(crossed.loss, std::log(2.0), 1e-5);
  const Slope halved = slope(
      BinaryCrossentropy(), [](Value x) { return sigmoid(x) * 0.5; }, floats({0}, {1, 1}),
      floats({1}, {1, 1}));
  EXPECT_NEAR(halved.loss, -std::log(0.25), 1e-5);
}

TEST(Logits, ProbabilitiesInsteadOfLogitsAreReportedAndTracedBack) {
  const Slope found = slope(
      SparseCategoricalCrossentropy({.from_logits = true}), [](Value x) { return softmax(x); },
      floats({20, 0}, {1, 2}), class_1());
  EXPECT_NEAR(found.loss, 20, 1e-5);
  ASSERT_EQ(found.remarks.size(), 1u);
  EXPECT_NE(found.remarks[0].find("sparse_categorical_crossentropy was told from_logits = true"),
            std::string::npos);
  const Slope sigmoids = slope(
      BinaryCrossentropy({.from_logits = true}), [](Value x) { return sigmoid(x); },
      floats({30}, {1, 1}), floats({0}, {1, 1}));
  EXPECT_NEAR(sigmoids.loss, 30, 1e-4);
  EXPECT_EQ(sigmoids.remarks.size(), 1u);
}

std::vector<std::string> remarks_on_layer(const Loss& loss, bool relu) {
  auto kernel = std::make_shared<Variable>();
  kernel->name = "kernel";
  kernel->shape = {3, 2};
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {4, 3}});
  Value scores;
  {
    const Graph::NameScope scope(graph, "dense_7");
    scores = matmul(x, graph.variable(kernel));
  }
  if (relu) scores = activation(scores, "relu");
  loss(graph.input("y", {DType::F32, {4, 2}}), scores);
  return remarks(graph);
}

TEST(Logits, PlainOutputsInsteadOfProbabilitiesAreReported) {
  const std::vector<std::string> categorical = remarks_on_layer(CategoricalCrossentropy(), false);
  ASSERT_EQ(categorical.size(), 1u);
  EXPECT_EQ(categorical[0],
            "the loss categorical_crossentropy expects probabilities, but dense_7 has no "
            "activation after its weights: set from_logits = true in the loss, or activation = "
            "\"softmax\" in the layer");
  EXPECT_NE(remarks_on_layer(BinaryCrossentropy(), false).at(0).find("\"sigmoid\""),
            std::string::npos);
}

TEST(Logits, NothingIsReportedThatMayBeIntended) {
  EXPECT_TRUE(remarks_on_layer(CategoricalCrossentropy({.from_logits = true}), false).empty());
  EXPECT_TRUE(remarks_on_layer(CategoricalCrossentropy(), true).empty());
  EXPECT_TRUE(remarks_on_layer(MeanSquaredError(), false).empty());
}

}  // namespace
}  // namespace lockstep
