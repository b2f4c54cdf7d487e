#include "lockstep/nn/loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "golden/ops.h"
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

// Compares a loss with the results of golden/make_ops.py.
void expect_golden(const std::string& name, const Loss& loss) {
  SCOPED_TRACE(name);
  const Tensor expected = golden::op("loss/" + name + "/y");
  const Computed found =
      compute(loss, golden::op("loss/" + name + "/x0"), golden::op("loss/" + name + "/x1"));
  const auto values = expected.values<float>();
  expect_near(found.per_example, {values.begin(), values.end()}, 1e-6);
  EXPECT_EQ(found.weight, static_cast<double>(values.size()));
  EXPECT_NEAR(found.sum, std::accumulate(values.begin(), values.end(), 0.0), 1e-5);
}

TEST(SparseCategoricalCrossentropy, AgreesWithPyTorchFromLogitsAndKerasFromProbabilities) {
  expect_golden("sparse_logits", SparseCategoricalCrossentropy({.from_logits = true}));
  expect_golden("sparse_logits_smoothed",
                SparseCategoricalCrossentropy({.from_logits = true, .label_smoothing = 0.1}));
  expect_golden("sparse_probabilities", SparseCategoricalCrossentropy());
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

TEST(CategoricalCrossentropy, AgreesWithPyTorchFromLogitsAndKerasFromProbabilities) {
  expect_golden("categorical_logits", CategoricalCrossentropy({.from_logits = true}));
  expect_golden("categorical_logits_smoothed",
                CategoricalCrossentropy({.from_logits = true, .label_smoothing = 0.1}));
  expect_golden("categorical_probabilities", CategoricalCrossentropy());
}

TEST(BinaryCrossentropy, AgreesWithPyTorchFromLogitsAndKerasFromProbabilities) {
  expect_golden("binary_logits", BinaryCrossentropy({.from_logits = true}));
  expect_golden("binary_logits_smoothed",
                BinaryCrossentropy({.from_logits = true, .label_smoothing = 0.2}));
  expect_golden("binary_probabilities", BinaryCrossentropy());
}

TEST(BinaryCrossentropy, MatchesAVectorOfLabelsWithAColumnOfScores) {
  const Computed loss = compute(BinaryCrossentropy({.from_logits = true}), classes({1, 0}, {2}),
                                floats({0, 0}, {2, 1}));
  expect_near(loss.per_example, {0.6931472, 0.6931472});
  EXPECT_EQ(loss.weight, 2);
}

TEST(ErrorLosses, AgreeWithPyTorch) {
  expect_golden("mse", MeanSquaredError());
  expect_golden("mae", MeanAbsoluteError());
  expect_golden("huber", Huber());
}

TEST(Losses, WeightExamplesButCountThemFully) {
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

// The mean of a loss that a user's function computes.
template <class F>
double mean_of(F f, const Tensor& labels, const Tensor& predictions) {
  Graph graph;
  const LossPair pair = f(graph.input("y", {labels.dtype(), labels.shape()}),
                          graph.input("p", {predictions.dtype(), predictions.shape()}));
  graph.output("sum", pair.sum);
  graph.output("weight", pair.weight);
  State state(host(), 1);
  auto results = run_step(std::move(graph), {{"y", labels}, {"p", predictions}}, state);
  return results["sum"].item() / results["weight"].item();
}

TEST(LossFunctions, TakeProbabilitiesUnlessToldOtherwise) {
  const Tensor probabilities = floats({0.2, 0.7, 0.1, 0.1, 0.1, 0.8}, {2, 3});
  const Tensor one_hot = floats({0, 1, 0, 0, 0, 1}, {2, 3});
  const double expected = -(std::log(0.7) + std::log(0.8)) / 2;
  EXPECT_NEAR(mean_of([](Value y, Value p) { return sparse_categorical_crossentropy(y, p); },
                      classes({1, 2}, {2}), probabilities),
              expected, 1e-6);
  EXPECT_NEAR(mean_of([](Value y, Value p) { return categorical_crossentropy(y, p); }, one_hot,
                      probabilities),
              expected, 1e-6);
  EXPECT_NEAR(mean_of([](Value y, Value p) { return binary_crossentropy(y, p); },
                      floats({1, 0}, {2, 1}), floats({0.7, 0.2}, {2, 1})),
              -(std::log(0.7) + std::log(0.8)) / 2, 1e-6);
}

TEST(LossFunctions, TakeLogitsOnRequest) {
  const CrossentropyOptions options{.from_logits = true};
  const double expected = (0.4643688 + 0.0707742 + 0.7177359) / 3;
  EXPECT_NEAR(
      mean_of([&](Value y, Value p) { return sparse_categorical_crossentropy(y, p, options); },
              classes({1, 2, 0}, {3}), logits()),
      expected, 1e-6);
  EXPECT_NEAR(mean_of([&](Value y, Value p) { return categorical_crossentropy(y, p, options); },
                      floats({0, 1, 0, 0, 0, 1, 1, 0, 0}, {3, 3}), logits()),
              expected, 1e-6);
  EXPECT_NEAR(mean_of([&](Value y, Value p) { return binary_crossentropy(y, p, options); },
                      floats({1, 0}, {2, 1}), floats({0, 0}, {2, 1})),
              std::log(2.0), 1e-6);
}

TEST(Losses, TakeClassesAlongAnotherAxis) {
  // Two examples of two positions each; classes along axis 1.
  const Tensor scores = floats({1, 0.1, 2, -1, 0.5, 3, 2, 1, 2, 2, -1, 0.5}, {2, 3, 2});
  const std::vector<double> expected = {(0.4643688 + 0.0707742) / 2, (0.7177359 + 0.4643688) / 2};
  const CrossentropyOptions options{.from_logits = true, .axis = 1};
  expect_near(compute(SparseCategoricalCrossentropy(options), classes({1, 2, 0, 1}, {2, 2}), scores)
                  .per_example,
              expected);
  const Tensor one_hot = floats({0, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 0}, {2, 3, 2});
  expect_near(compute(CategoricalCrossentropy(options), one_hot, scores).per_example, expected);
  EXPECT_ERROR(compute(CategoricalCrossentropy({.axis = 3}), one_hot, scores), UsageError,
               "[categorical_crossentropy] axis 3 is not one of the 3 axes of (2, 3, 2)");
}

TEST(Losses, ShowBothMismatchedShapes) {
  Graph graph;
  const Value scores = graph.input("p", {DType::F32, {32, 10}});
  const Value labels = graph.input("y", {DType::I64, {31}});
  const Value columns = graph.input("c", {DType::F32, {32, 5}});
  EXPECT_ERROR(sparse_categorical_crossentropy(labels, scores), UsageError,
               "[sparse_categorical_crossentropy] labels (31,) do not match predictions (32, 10)");
  EXPECT_ERROR(mean_squared_error(columns, scores), UsageError,
               "[mean_squared_error] labels (32, 5) do not match predictions (32, 10)");
  EXPECT_ERROR(categorical_crossentropy(labels, scores), UsageError,
               "[categorical_crossentropy] labels (31,) do not match predictions (32, 10)");
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
