#include "lockstep/nn/loss.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "nn/running.h"

namespace lockstep {
namespace {

struct Computed {
  Tensor per_example;
  double sum = 0;
  double weight = 0;
};

Computed compute(const Loss& loss, const Tensor& labels, const Tensor& predictions,
                 const Tensor& weights = {}) {
  Graph graph;
  const Value y = graph.input("y", {labels.dtype(), labels.shape()});
  const Value p = graph.input("p", {predictions.dtype(), predictions.shape()});
  Feeds feeds = {{"y", labels}, {"p", predictions}};
  Value w;
  if (weights.defined()) {
    w = graph.input("w", {weights.dtype(), weights.shape()});
    feeds["w"] = weights;
  }
  const LossPair pair = loss(y, p, w);
  EXPECT_EQ(pair.sum.type(), (ValueType{DType::F32, {}}));
  EXPECT_EQ(pair.weight.type(), (ValueType{DType::F32, {}}));
  graph.output("per_example", loss.per_example(y, p));
  graph.output("sum", pair.sum);
  graph.output("weight", pair.weight);
  State state(host(), 1);
  auto results = run_step(std::move(graph), feeds, state);
  return {results["per_example"], results["sum"].item(), results["weight"].item()};
}

Tensor classes(const std::vector<std::int64_t>& values, Shape shape) {
  return Tensor::of(values, std::move(shape));
}

const Tensor& logits() {
  static const Tensor tensor = floats({1, 2, 0.5, 0.1, -1, 3, 2, 2, -1}, {3, 3});
  return tensor;
}

TEST(SparseCategoricalCrossentropy, MatchesPyTorchFromLogits) {
  const Computed loss = compute(SparseCategoricalCrossentropy({.from_logits = true}),
                                classes({1, 2, 0}, {3}), logits());
  expect_near(loss.per_example, {0.4643688, 0.0707742, 0.7177359});
  EXPECT_NEAR(loss.sum, 1.2528789, 1e-5);
  EXPECT_EQ(loss.weight, 3);
}

TEST(SparseCategoricalCrossentropy, SmoothsLabels) {
  expect_near(compute(SparseCategoricalCrossentropy({.from_logits = true, .label_smoothing = 0.1}),
                      classes({1, 2, 0}, {3}), logits())
                  .per_example,
              {0.5477021, 0.3007742, 0.8177359});
}

TEST(SparseCategoricalCrossentropy, ClipsProbabilities) {
  expect_near(compute(SparseCategoricalCrossentropy(), classes({1, 2, 1}, {3}),
                      floats({0.2, 0.7, 0.1, 0.1, 0.1, 0.8, 1, 0, 0}, {3, 3}))
                  .per_example,
              {0.3566750, 0.2231435, 16.1180954});
}

TEST(SparseCategoricalCrossentropy, TakesLabelsInAColumnAndOfAnyIntegerDType) {
  const std::vector<double> expected = {0.4643688, 0.0707742, 0.7177359};
  const Loss loss = SparseCategoricalCrossentropy({.from_logits = true});
  expect_near(compute(loss, classes({1, 2, 0}, {3, 1}), logits()).per_example, expected);
  expect_near(
      compute(loss, Tensor::of(std::vector<std::uint8_t>{1, 2, 0}, {3}), logits()).per_example,
      expected);
  expect_near(compute(loss, floats({1, 2, 0}, {3}), logits()).per_example, expected);
}

TEST(SparseCategoricalCrossentropy, AveragesPositions) {
  const Computed loss =
      compute(SparseCategoricalCrossentropy({.from_logits = true}), classes({1, 2, 0, 1}, {2, 2}),
              floats({1, 2, 0.5, 0.1, -1, 3, 2, 2, -1, 1, 2, 0.5}, {2, 2, 3}));
  expect_near(loss.per_example, {(0.4643688 + 0.0707742) / 2, (0.7177359 + 0.4643688) / 2});
  EXPECT_EQ(loss.weight, 2);
}

TEST(SparseCategoricalCrossentropy, TakesWeightsForPositions) {
  const Loss loss = SparseCategoricalCrossentropy({.from_logits = true});
  const Tensor labels = classes({1, 2}, {1, 2});
  const Tensor scores = floats({1, 2, 0.5, 0.1, -1, 3}, {1, 2, 3});
  EXPECT_NEAR(compute(loss, labels, scores, floats({1, 0}, {1, 2})).sum, 0.4643688 / 2, 1e-5);
  EXPECT_NEAR(compute(loss, labels, scores, floats({3}, {1})).sum, 3 * (0.4643688 + 0.0707742) / 2,
              1e-5);
}

TEST(CategoricalCrossentropy, MatchesPyTorch) {
  const Tensor one_hot = floats({0, 1, 0, 0, 0, 1, 1, 0, 0}, {3, 3});
  expect_near(
      compute(CategoricalCrossentropy({.from_logits = true}), one_hot, logits()).per_example,
      {0.4643688, 0.0707742, 0.7177359});
  expect_near(compute(CategoricalCrossentropy({.from_logits = true, .label_smoothing = 0.1}),
                      one_hot, logits())
                  .per_example,
              {0.5477021, 0.3007742, 0.8177359});
}

TEST(CategoricalCrossentropy, NormalisesProbabilities) {
  expect_near(compute(CategoricalCrossentropy(), floats({0, 1}, {1, 2}), floats({1, 3}, {1, 2}))
                  .per_example,
              {0.2876821});
}

TEST(BinaryCrossentropy, MatchesPyTorch) {
  const Tensor scores = floats({0.5, -1, 2, 0}, {2, 2}), truth = floats({1, 0, 1, 1}, {2, 2});
  expect_near(compute(BinaryCrossentropy({.from_logits = true}), truth, scores).per_example,
              {0.3936694, 0.4100376});
  expect_near(
      compute(BinaryCrossentropy({.from_logits = true, .label_smoothing = 0.2}), truth, scores)
          .per_example,
      {0.4686694, 0.5100375});
  // In f32, 1 - (1 - 1e-7) is 1.19e-7.
  expect_near(compute(BinaryCrossentropy(), floats({1, 0, 1, 0}, {2, 2}),
                      floats({0.9, 0.2, 0.4, 1}, {2, 2}))
                  .per_example,
              {0.1642520, (0.9162907 + 15.942385) / 2});
}

TEST(BinaryCrossentropy, FitsAVectorOfLabelsToAColumnOfScores) {
  const Computed loss = compute(BinaryCrossentropy({.from_logits = true}), classes({1, 0}, {2}),
                                floats({0, 0}, {2, 1}));
  expect_near(loss.per_example, {0.6931472, 0.6931472});
  EXPECT_EQ(loss.weight, 2);
}

TEST(ErrorLosses, MatchPyTorch) {
  const Tensor labels = floats({1, 2, 3, 0, -1, 5}, {2, 3});
  const Tensor predictions = floats({1.5, 2, 1, 0, 1, 1.5}, {2, 3});
  expect_near(compute(MeanSquaredError(), labels, predictions).per_example, {1.4166667, 5.4166667});
  expect_near(compute(MeanAbsoluteError(), labels, predictions).per_example,
              {0.8333333, 1.8333333});
  expect_near(compute(Huber(), labels, predictions).per_example, {0.5416667, 1.5});
}

TEST(Losses, WeighExamplesButCountThemWhole) {
  const Computed loss = compute(MeanSquaredError(), floats({0, 0, 0}, {3, 1}),
                                floats({1, 2, 3}, {3, 1}), floats({1, 0, 2}, {3}));
  EXPECT_NEAR(loss.sum, 1 + 18, 1e-5);
  EXPECT_EQ(loss.weight, 3);
}

TEST(Losses, OfAnEmptyBatchAreZeroOverZero) {
  const Computed loss = compute(SparseCategoricalCrossentropy({.from_logits = true}),
                                Tensor(DType::I64, {0}), Tensor(DType::F32, {0, 10}));
  EXPECT_EQ(loss.sum, 0);
  EXPECT_EQ(loss.weight, 0);
}

TEST(Losses, ShowBothShapesThatDoNotFit) {
  Graph graph;
  const Value scores = graph.input("p", {DType::F32, {32, 10}});
  const Value labels = graph.input("y", {DType::I64, {31}});
  const Value columns = graph.input("c", {DType::F32, {32, 5}});
  EXPECT_ERROR(sparse_categorical_crossentropy(labels, scores), UsageError,
               "[sparse_categorical_crossentropy] labels (31,) do not fit predictions (32, 10)");
  EXPECT_ERROR(mean_squared_error(columns, scores), UsageError,
               "[mean_squared_error] labels (32, 5) do not fit predictions (32, 10)");
  EXPECT_ERROR(categorical_crossentropy(labels, scores), UsageError,
               "[categorical_crossentropy] labels (31,) do not fit predictions (32, 10)");
  EXPECT_ERROR(mean_squared_error(scores, scores, labels), UsageError, "sample weights (31,)");
}

TEST(Losses, NameALabelOutOfRange) {
  EXPECT_THROW(compute(SparseCategoricalCrossentropy(), classes({1, 3, 0}, {3}), logits()),
               DataError);
}

TEST(Losses, AreFoundByName) {
  EXPECT_EQ(loss_by_name("mse").name(), "mean_squared_error");
  EXPECT_EQ(loss_by_name("sparse_categorical_crossentropy").name(),
            "sparse_categorical_crossentropy");
  EXPECT_ERROR(loss_by_name("mze"), UsageError, "there is no loss called mze; there are:");
}

}  // namespace
}  // namespace lockstep
