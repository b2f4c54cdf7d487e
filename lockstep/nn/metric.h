// Keras's metrics. Their state is in variables that a step adds to; the states of all replicas are
// added up when read, and the result is computed on the host.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/graph/graph.h"

namespace lockstep {

class MetricBase {
 public:
  virtual ~MetricBase() = default;
  virtual std::string name() const = 0;
  // Its variables (not trainable, sums that start at zero), created once.
  virtual std::vector<VariableRef> variables() const = 0;
  // Builds the nodes that add a batch to the variables; sample_weight may be undefined.
  virtual void update(Value labels, Value predictions, Value sample_weight) = 0;
  // The metric from the variables' values, in the order of variables().
  virtual double result(std::span<const Tensor> state) const = 0;
};

class Metric {  // a handle
 public:
  explicit Metric(std::shared_ptr<MetricBase> base) : base_(std::move(base)) {}
  Metric(const char* name);         // NOLINT: a name is a metric ("accuracy"), see metric_by_name
  Metric(const std::string& name);  // NOLINT
  MetricBase* operator->() const { return base_.get(); }

 private:
  std::shared_ptr<MetricBase> base_;
};

struct MetricOptions {
  std::string name = "";  // empty: the name in Keras
};
struct TopKOptions {
  std::int64_t k = 5;
  std::string name = "";
};
struct ThresholdOptions {
  double threshold = 0.5;
  std::string name = "";
};
struct AUCOptions {
  std::int64_t num_thresholds = 200;
  bool from_logits = false;
  std::string name = "";
};

// How often predictions equal labels, number by number. (What Keras means by "accuracy" is
// metric_by_name("accuracy").)
Metric Accuracy(MetricOptions options = {});
// For these, a row of scores with a NaN counts as wrong, and so does a label that is not a class.
Metric BinaryAccuracy(ThresholdOptions options = {});
Metric CategoricalAccuracy(MetricOptions options = {});
Metric SparseCategoricalAccuracy(MetricOptions options = {});
Metric TopKCategoricalAccuracy(TopKOptions options = {});
Metric SparseTopKCategoricalAccuracy(TopKOptions options = {});
Metric AUC(AUCOptions options = {});
Metric Precision(ThresholdOptions options = {});
Metric Recall(ThresholdOptions options = {});
Metric MeanSquaredErrorMetric(MetricOptions options = {});
Metric MeanAbsoluteErrorMetric(MetricOptions options = {});
// The mean of a loss over all examples seen: what `fit` shows as "loss".
Metric LossMean(std::string name);  // update() takes the LossPair: (sum, weight, {})

// A metric by Keras's name ("accuracy", "auc", "mse", …); UsageError, listing the names, if there
// is none. "accuracy" is binary, categorical or sparse categorical, depending on the shapes of
// labels and predictions.
Metric metric_by_name(const std::string& name);

}  // namespace lockstep
