#include "lockstep/nn/metric.h"

#include <gtest/gtest.h>

#include <limits>

#include "lockstep/base/error.h"
#include "nn/running.h"

namespace lockstep {
namespace {

struct Batch {
  Tensor labels;
  Tensor predictions;
  Tensor weights = {};
};

// The result after all batches.
double measure(const Metric& metric, const std::vector<Batch>& batches) {
  State state(host(), 1);
  for (const Batch& batch : batches) {
    Graph graph;
    const Value y = graph.input("y", {batch.labels.dtype(), batch.labels.shape()});
    const Value p = graph.input("p", {batch.predictions.dtype(), batch.predictions.shape()});
    Feeds feeds = {{"y", batch.labels}, {"p", batch.predictions}};
    Value w;
    if (batch.weights.defined()) {
      w = graph.input("w", {batch.weights.dtype(), batch.weights.shape()});
      feeds["w"] = batch.weights;
    }
    metric->update(y, p, w);
    run_step(std::move(graph), feeds, state);
  }
  std::vector<Tensor> values;
  for (const VariableRef& variable : metric->variables()) values.push_back(state.get(*variable));
  return metric->result(values);
}

Tensor class_indices(const std::vector<std::int64_t>& values, Shape shape) {
  return Tensor::of(values, std::move(shape));
}

const Tensor& scores() {
  static const Tensor tensor =
      floats({0.1, 0.6, 0.3, 0.5, 0.2, 0.3, 0.2, 0.2, 0.6, 0.4, 0.35, 0.25}, {4, 3});
  return tensor;
}

TEST(Accuracies, CountTheRightClasses) {
  EXPECT_DOUBLE_EQ(
      measure(SparseCategoricalAccuracy(), {{class_indices({1, 2, 2, 0}, {4}), scores()}}), 0.75);
  EXPECT_DOUBLE_EQ(measure(SparseCategoricalAccuracy(),
                           {{Tensor::of(std::vector<std::uint8_t>{1, 2, 2, 0}, {4, 1}), scores()}}),
                   0.75);
  EXPECT_DOUBLE_EQ(measure(CategoricalAccuracy(),
                           {{floats({0, 1, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0}, {4, 3}), scores()}}),
                   0.75);
  EXPECT_DOUBLE_EQ(measure(BinaryAccuracy(), {{class_indices({1, 1, 0, 0}, {4}),
                                               floats({0.9, 0.5, 0.1, 0.7}, {4, 1})}}),
                   0.5);
  EXPECT_DOUBLE_EQ(
      measure(BinaryAccuracy({.threshold = 0.4}),
              {{class_indices({1, 1, 0, 0}, {4}), floats({0.9, 0.5, 0.1, 0.7}, {4, 1})}}),
      0.75);
}

TEST(Accuracies, AddUpOverBatchesOfDifferentSize) {
  EXPECT_DOUBLE_EQ(
      measure(SparseCategoricalAccuracy(), {{class_indices({1, 2, 2, 0}, {4}), scores()},
                                            {class_indices({0}, {1}), floats({0, 1, 0}, {1, 3})},
                                            {Tensor(DType::I64, {0}), Tensor(DType::F32, {0, 3})}}),
      0.6);
}

TEST(Accuracies, WeightSamples) {
  EXPECT_DOUBLE_EQ(measure(SparseCategoricalAccuracy(), {{class_indices({1, 2, 2, 0}, {4}),
                                                          scores(), floats({1, 2, 0, 1}, {4})}}),
                   0.5);
}

TEST(Accuracies, CountEveryPosition) {
  EXPECT_DOUBLE_EQ(
      measure(SparseCategoricalAccuracy(), {{class_indices({1, 2, 2, 0}, {2, 2}),
                                             scores().reshaped({2, 2, 3}), floats({1, 3}, {2})}}),
      (1.0 + 6.0) / 8.0);
}

TEST(Accuracy, CountsHowOftenPredictionsEqualLabels) {
  // The examples in Keras's documentation.
  const Tensor labels = floats({1, 2, 3, 4}, {4, 1}), predictions = floats({0, 2, 3, 4}, {4, 1});
  EXPECT_DOUBLE_EQ(measure(Accuracy(), {{labels, predictions}}), 0.75);
  EXPECT_DOUBLE_EQ(measure(Accuracy(), {{labels, predictions, floats({1, 1, 0, 0}, {4})}}), 0.5);
  EXPECT_DOUBLE_EQ(measure(Accuracy(), {{class_indices({0, 1}, {2}), floats({0, 1}, {2, 1})}}), 1);
  // Scores hardly ever equal one-hot labels.
  EXPECT_DOUBLE_EQ(
      measure(Accuracy(), {{floats({0, 1, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0}, {4, 3}), scores()}}), 0);
}

TEST(Accuracy, ByNameIsChosenByTheShapes) {
  EXPECT_DOUBLE_EQ(
      measure(metric_by_name("accuracy"), {{class_indices({1, 2, 2, 0}, {4}), scores()}}), 0.75);
  EXPECT_DOUBLE_EQ(
      measure(metric_by_name("accuracy"), {{class_indices({1, 2, 2, 0}, {4, 1}), scores()}}), 0.75);
  EXPECT_DOUBLE_EQ(measure(metric_by_name("accuracy"),
                           {{floats({0, 1, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0}, {4, 3}), scores()}}),
                   0.75);
  EXPECT_DOUBLE_EQ(measure(metric_by_name("accuracy"), {{class_indices({1, 1, 0, 0}, {4}),
                                                         floats({0.9, 0.5, 0.1, 0.7}, {4, 1})}}),
                   0.5);
}

TEST(Accuracies, DoNotCountNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  // A row with a NaN predicts no class, whatever argmax gives.
  const Tensor rows = floats({nan, nan, nan, nan, 1, 0, 0, nan, 1, 1, 0, 0}, {4, 3});
  EXPECT_DOUBLE_EQ(measure(SparseCategoricalAccuracy(), {{class_indices({0, 1, 2, 0}, {4}), rows}}),
                   0.25);
  EXPECT_DOUBLE_EQ(measure(CategoricalAccuracy(),
                           {{floats({1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 0, 0}, {4, 3}), rows}}),
                   0.25);
  EXPECT_DOUBLE_EQ(
      measure(BinaryAccuracy(), {{floats({0, 1, 0, 1}, {4}), floats({nan, nan, 0, 1}, {4, 1})}}),
      0.5);
}

TEST(TopK, DoesNotCountInvalidLabels) {
  EXPECT_DOUBLE_EQ(measure(SparseTopKCategoricalAccuracy({.k = 2}),
                           {{class_indices({5, -1, 1}, {3}),
                             floats({-1, -2, -7, 0.1, 0.2, 0.7, 0.1, 0.2, 0.7}, {3, 3})}}),
                   1.0 / 3);
}

TEST(TopK, CountsClassesWithStrictlyHigherScores) {
  const Tensor labels = class_indices({2, 1, 0, 1}, {4});
  EXPECT_DOUBLE_EQ(measure(SparseTopKCategoricalAccuracy({.k = 1}), {{labels, scores()}}), 0);
  EXPECT_DOUBLE_EQ(measure(SparseTopKCategoricalAccuracy({.k = 2}), {{labels, scores()}}), 0.75);
  EXPECT_DOUBLE_EQ(measure(SparseTopKCategoricalAccuracy({.k = 3}), {{labels, scores()}}), 1);
  EXPECT_DOUBLE_EQ(measure(TopKCategoricalAccuracy({.k = 2}),
                           {{floats({0, 0, 1, 0, 1, 0, 1, 0, 0, 0, 1, 0}, {4, 3}), scores()}}),
                   0.75);
}

TEST(TopK, DoesNotCountRowsThatAreNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_DOUBLE_EQ(
      measure(SparseTopKCategoricalAccuracy({.k = 3}),
              {{class_indices({0, 0}, {2}), floats({1, 0, 0, nan, nan, nan}, {2, 3})}}),
      0.5);
}

TEST(PrecisionAndRecall, DivideByPredictedAndByTruePositives) {
  const Tensor labels = class_indices({0, 1, 1, 1}, {4}),
               predictions = floats({0.9, 0.8, 0.1, 0.6}, {4});
  EXPECT_DOUBLE_EQ(measure(Precision(), {{labels, predictions}}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(measure(Recall(), {{labels, predictions}}), 2.0 / 3);
  EXPECT_DOUBLE_EQ(measure(Precision({.threshold = 0.7}), {{labels, predictions}}), 0.5);
  EXPECT_DOUBLE_EQ(measure(Recall({.threshold = 0.7}), {{labels, predictions}}), 1.0 / 3);
  const Tensor weights = floats({0.5, 1, 2, 1}, {4});
  EXPECT_DOUBLE_EQ(measure(Precision(), {{labels, predictions, weights}}), 0.8);
  EXPECT_DOUBLE_EQ(measure(Recall(), {{labels, predictions, weights}}), 0.5);
}

TEST(PrecisionAndRecall, AreZeroWithoutPositives) {
  EXPECT_EQ(measure(Precision(), {{class_indices({1}, {1}), floats({0.1}, {1})}}), 0);
  EXPECT_EQ(measure(Recall(), {{class_indices({0}, {1}), floats({0.9}, {1})}}), 0);
}

TEST(AreaUnderTheCurve, Uses200ThresholdsByDefault) {
  // 0.65 and 0.652 are between the same two thresholds and count as a tie.
  const Tensor labels = class_indices({0, 0, 1, 1, 1, 0}, {6});
  const Tensor predictions = floats({0.1, 0.4, 0.35, 0.8, 0.65, 0.652}, {6, 1});
  EXPECT_NEAR(measure(AUC(), {{labels, predictions}}), 0.7222222, 1e-6);
  EXPECT_NEAR(measure(AUC({.num_thresholds = 2000}), {{labels, predictions}}), 0.6666667, 1e-6);
  EXPECT_NEAR(measure(AUC(), {{labels, predictions, floats({1, 2, 1, 0.5, 1, 3}, {6})}}), 0.5666667,
              1e-6);
  EXPECT_NEAR(measure(AUC(), {{class_indices({0, 0}, {2}), floats({0, 0.5}, {2})},
                              {class_indices({1, 1}, {2}), floats({0.3, 0.9}, {2})}}),
              0.75, 1e-6);
  EXPECT_NEAR(measure(AUC({.from_logits = true}),
                      {{class_indices({0, 0, 1, 1}, {4}), floats({-9, 0, -1, 3}, {4})}}),
              0.75, 1e-6);
}

TEST(ErrorMetrics, AreMeansOverAllBatches) {
  const Batch batch{floats({1, 2, 3, 0, -1, 5}, {2, 3}), floats({1.5, 2, 1, 0, 1, 1.5}, {2, 3})};
  EXPECT_NEAR(measure(MeanSquaredErrorMetric(), {batch, batch}), (1.4166667 + 5.4166667) / 2, 1e-6);
  EXPECT_NEAR(measure(MeanAbsoluteErrorMetric(), {batch}), (0.8333333 + 1.8333333) / 2, 1e-6);
}

TEST(LossMean, DividesSumsByWeights) {
  EXPECT_DOUBLE_EQ(measure(LossMean("loss"), {{floats({6}, {}), floats({4}, {})},
                                              {floats({3}, {}), floats({2}, {})},
                                              {floats({0}, {}), floats({0}, {})}}),
                   1.5);
  EXPECT_EQ(LossMean("loss")->name(), "loss");
}

TEST(Metrics, KeepTheirSumsInNamedVariables) {
  const Metric metric = Accuracy({.name = "acc"});
  ASSERT_EQ(metric->variables().size(), 2u);
  EXPECT_EQ(metric->variables()[0]->name, "metrics/acc/total");
  EXPECT_EQ(metric->variables()[1]->name, "metrics/acc/count");
  EXPECT_EQ(metric->variables()[0]->dtype, DType::F64);
  EXPECT_FALSE(metric->variables()[0]->trainable);
}

TEST(Metrics, AreFoundByName) {
  for (const char* name :
       {"accuracy", "acc", "binary_accuracy", "categorical_accuracy", "sparse_categorical_accuracy",
        "top_k_categorical_accuracy", "sparse_top_k_categorical_accuracy", "auc", "precision",
        "recall", "mse", "mean_absolute_error"}) {
    EXPECT_EQ(metric_by_name(name)->name(), name);
  }
  EXPECT_ERROR(metric_by_name("precison"), UsageError, "there is no metric called precison");
}

TEST(Metrics, ShowMismatchedShapes) {
  Graph graph;
  const Value y = graph.input("y", {DType::I64, {3}}), p = graph.input("p", {DType::F32, {4, 3}});
  EXPECT_ERROR(SparseCategoricalAccuracy()->update(y, p, {}), UsageError,
               "[sparse_categorical_accuracy] labels (3,) do not match predictions (4, 3)");
  EXPECT_ERROR(AUC()->update(y, p, {}), UsageError,
               "[auc] labels (3,) do not match predictions (4, 3)");
}

}  // namespace
}  // namespace lockstep
