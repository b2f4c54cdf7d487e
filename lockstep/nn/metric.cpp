// Metrics that are means of one value per example: accuracies and errors.
#include "lockstep/nn/metric.h"

#include <array>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/graph/ops/shape.h"
#include "lockstep/nn/labels.h"
#include "lockstep/nn/metric_state.h"

namespace lockstep {
namespace {

std::string name_or(const std::string& given, const char* name) {
  return given.empty() ? name : given;
}

// Which rows of scores determine a class: those without a NaN.
Value known_rows(Value predictions) {
  const Value unknown =
      reduce_sum(cast(not_equal(predictions, predictions), DType::F32), {.axes = {-1}});
  return equal(unknown, predictions.graph().scalar(0));
}

Value sparse_hits(Value labels, Value predictions) {
  const Value classes = class_labels("sparse_categorical_accuracy", labels, predictions);
  return logical_and(equal(argmax(predictions), cast(classes, DType::I64)),
                     known_rows(predictions));
}

void require_class_scores(std::string_view what, Value labels, Value predictions) {
  require(
      labels.shape() == predictions.shape() && labels.shape().rank() >= 2,
      "[{}] labels {} do not match predictions {}: give one number per class, or use the sparse "
      "metric for class numbers",
      what, labels.shape(), predictions.shape());
}

Value categorical_hits(Value labels, Value predictions) {
  require_class_scores("categorical_accuracy", labels, predictions);
  return logical_and(equal(argmax(predictions), argmax(labels)), known_rows(predictions));
}

Value binary_hits(Value labels, Value predictions, double threshold) {
  const Aligned pair = align("binary_accuracy", labels, predictions);
  Graph& graph = predictions.graph();
  const Value above = greater(pair.predictions, graph.scalar(threshold, predictions.dtype()));
  const Value hits = logical_and(equal(cast(above, predictions.dtype()), pair.labels),
                                 equal(pair.predictions, pair.predictions));
  return mean_over_features(cast(hits, DType::F64));
}

// A row counts as a hit if its label is a class and fewer than k classes have a strictly higher
// score. A score that is not finite makes `right` NaN, and then the row does not count.
Value top_k_hits(Value labels, Value predictions, std::int64_t k) {
  Graph& graph = predictions.graph();
  const Value classes = cast(labels, DType::I64);
  const std::int64_t depth = predictions.shape()[-1];
  const DType dtype = predictions.dtype();
  const Value right =
      reduce_sum(one_hot(classes, depth, dtype) * predictions, {.axes = {-1}, .keepdims = true});
  const Value ahead = reduce_sum(cast(greater(predictions, right), dtype), {.axes = {-1}});
  const Value first_k = less(ahead, graph.scalar(static_cast<double>(k), dtype));
  const Value is_class =
      logical_and(greater_equal(classes, graph.scalar(0, DType::I64)),
                  less(classes, graph.scalar(static_cast<double>(depth), DType::I64)));
  const Shape rows = ahead.shape();
  return logical_and(logical_and(first_k, is_class), reshape(equal(right, right), rows));
}

void require_k(std::int64_t k) {
  require(k > 0, "[top_k_categorical_accuracy] k must be above 0, got {}", k);
}

// What Keras means by "accuracy": binary for a single score, categorical for labels of the same
// shape as the predictions, otherwise sparse.
Value accuracy_hits(Value labels, Value predictions) {
  const Shape &given = labels.shape(), &scores = predictions.shape();
  if (scores.rank() <= 1 || scores[-1] == 1) return binary_hits(labels, predictions, 0.5);
  if (given.rank() == scores.rank() && given[-1] != 1) {
    return categorical_hits(labels, predictions);
  }
  return sparse_hits(labels, predictions);
}

}  // namespace

Metric Accuracy(MetricOptions options) {
  return mean_metric(name_or(options.name, "accuracy"), [](Value labels, Value predictions) {
    const Aligned pair = align("accuracy", labels, predictions);
    return equal(pair.labels, pair.predictions);
  });
}

Metric BinaryAccuracy(ThresholdOptions options) {
  return mean_metric(name_or(options.name, "binary_accuracy"),
                     [threshold = options.threshold](Value labels, Value predictions) {
                       return binary_hits(labels, predictions, threshold);
                     });
}

Metric CategoricalAccuracy(MetricOptions options) {
  return mean_metric(name_or(options.name, "categorical_accuracy"), categorical_hits);
}

Metric SparseCategoricalAccuracy(MetricOptions options) {
  return mean_metric(name_or(options.name, "sparse_categorical_accuracy"), sparse_hits);
}

Metric TopKCategoricalAccuracy(TopKOptions options) {
  require_k(options.k);
  return mean_metric(name_or(options.name, "top_k_categorical_accuracy"),
                     [k = options.k](Value labels, Value predictions) {
                       require_class_scores("top_k_categorical_accuracy", labels, predictions);
                       return top_k_hits(argmax(labels), predictions, k);
                     });
}

Metric SparseTopKCategoricalAccuracy(TopKOptions options) {
  require_k(options.k);
  return mean_metric(name_or(options.name, "sparse_top_k_categorical_accuracy"),
                     [k = options.k](Value labels, Value predictions) {
                       return top_k_hits(
                           class_labels("sparse_top_k_categorical_accuracy", labels, predictions),
                           predictions, k);
                     });
}

Metric MeanSquaredErrorMetric(MetricOptions options) {
  return mean_metric(name_or(options.name, "mean_squared_error"),
                     [](Value labels, Value predictions) {
                       const Aligned pair = align("mean_squared_error", labels, predictions);
                       return mean_over_features(square(pair.predictions - pair.labels));
                     });
}

Metric MeanAbsoluteErrorMetric(MetricOptions options) {
  return mean_metric(name_or(options.name, "mean_absolute_error"),
                     [](Value labels, Value predictions) {
                       const Aligned pair = align("mean_absolute_error", labels, predictions);
                       return mean_over_features(abs(pair.predictions - pair.labels));
                     });
}

Metric metric_by_name(const std::string& name) {
  if (name == "accuracy" || name == "acc") return mean_metric(name, accuracy_hits);
  if (name == "binary_accuracy") return BinaryAccuracy();
  if (name == "categorical_accuracy") return CategoricalAccuracy();
  if (name == "sparse_categorical_accuracy") return SparseCategoricalAccuracy();
  if (name == "top_k_categorical_accuracy") return TopKCategoricalAccuracy();
  if (name == "sparse_top_k_categorical_accuracy") return SparseTopKCategoricalAccuracy();
  if (name == "auc" || name == "AUC") return AUC({.name = name});
  if (name == "precision") return Precision();
  if (name == "recall") return Recall();
  if (name == "mean_squared_error" || name == "mse") return MeanSquaredErrorMetric({.name = name});
  if (name == "mean_absolute_error" || name == "mae") {
    return MeanAbsoluteErrorMetric({.name = name});
  }
  fail<UsageError>(
      "[metric] there is no metric called {}; there are: accuracy (acc), binary_accuracy, "
      "categorical_accuracy, sparse_categorical_accuracy, top_k_categorical_accuracy, "
      "sparse_top_k_categorical_accuracy, auc, precision, recall, mean_squared_error (mse), "
      "mean_absolute_error (mae)",
      name);
}

Metric::Metric(const char* name) : Metric(metric_by_name(name)) {}

Metric::Metric(const std::string& name) : Metric(metric_by_name(name)) {}

}  // namespace lockstep
