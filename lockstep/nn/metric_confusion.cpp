// Metrics that count true and false positives at thresholds: precision, recall, area under the
// curve.
#include "lockstep/base/error.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/graph/ops/shape.h"
#include "lockstep/nn/labels.h"
#include "lockstep/nn/metric_state.h"

namespace lockstep {
namespace {

// As in Keras: the outermost thresholds are this far outside [0, 1].
constexpr float kBeyond = 1e-7f;

// A batch as a list of decisions: scores (M), and the weighted truth and its opposite (M) in f64.
struct Decisions {
  Value scores;
  Value positives;
  Value negatives;
};

Decisions decisions(std::string_view what, Value labels, Value predictions, Value sample_weight) {
  const Aligned pair = align(what, labels, predictions);
  Graph& graph = predictions.graph();
  const std::int64_t count = predictions.shape().elements();
  const Value truth = not_equal(pair.labels, graph.scalar(0, pair.labels.dtype()));
  Value positives = cast(truth, DType::F64);
  Value negatives = cast(logical_not(truth), DType::F64);
  if (sample_weight.defined()) {
    const Value weights = fit_weights(what, sample_weight, positives);
    positives = positives * weights;
    negatives = negatives * weights;
  }
  return {reshape(predictions, Ints{count}), reshape(positives, Ints{count}),
          reshape(negatives, Ints{count})};
}

// Hits / (hits + misses), where hits are true positives and misses either false positives
// (precision) or false negatives (recall).
class ThresholdMetric final : public SumMetric {
 public:
  enum class Kind { Precision, Recall };
  ThresholdMetric(Kind kind, ThresholdOptions options)
      : SumMetric(name_of_kind(kind, options.name),
                  {{"true_positives"},
                   {kind == Kind::Precision ? "false_positives" : "false_negatives"}}),
        kind_(kind),
        threshold_(options.threshold) {}

  void update(Value labels, Value predictions, Value sample_weight) override {
    Graph& graph = predictions.graph();
    const Graph::NameScope scope(graph, "metrics/" + name());
    const Decisions batch = decisions(name(), labels, predictions, sample_weight);
    const Value above = greater(batch.scores, graph.scalar(threshold_, predictions.dtype()));
    const Value yes = cast(above, DType::F64);
    add_to(0, reduce_sum(batch.positives * yes));
    add_to(1, kind_ == Kind::Precision
                  ? reduce_sum(batch.negatives * yes)
                  : reduce_sum(batch.positives * cast(logical_not(above), DType::F64)));
  }

  double result(std::span<const Tensor> state) const override {
    const double hits = state[0].item();
    return ratio(hits, hits + state[1].item());
  }

 private:
  static std::string name_of_kind(Kind kind, const std::string& given) {
    if (!given.empty()) return given;
    return kind == Kind::Precision ? "precision" : "recall";
  }
  Kind kind_;
  double threshold_;
};

// Area under the receiver operating characteristic: positives and negatives above each of T
// thresholds are counted, and the curve through those points is integrated by trapezoids, as Keras
// does ('interpolation').
class AreaMetric final : public SumMetric {
 public:
  explicit AreaMetric(AUCOptions options)
      : SumMetric(options.name.empty() ? "auc" : options.name,
                  {{"true_positives", {options.num_thresholds}},
                   {"true_negatives", {options.num_thresholds}},
                   {"false_positives", {options.num_thresholds}},
                   {"false_negatives", {options.num_thresholds}}}),
        from_logits_(options.from_logits) {
    const std::int64_t count = options.num_thresholds;
    for (std::int64_t i = 0; i < count; ++i) {
      thresholds_.push_back(static_cast<float>(i) / static_cast<float>(count - 1));
    }
    thresholds_.front() = -kBeyond;
    thresholds_.back() = 1 + kBeyond;
  }

  void update(Value labels, Value predictions, Value sample_weight) override {
    Graph& graph = predictions.graph();
    const Graph::NameScope scope(graph, "metrics/" + name());
    if (from_logits_) predictions = sigmoid(predictions);
    const Decisions batch = decisions(name(), labels, predictions, sample_weight);
    const std::int64_t count = batch.scores.shape()[0];
    const auto width = static_cast<std::int64_t>(thresholds_.size());
    const Value thresholds =
        cast(graph.constant(Tensor::of(thresholds_, {1, width})), predictions.dtype());
    const Value above = greater(reshape(batch.scores, Ints{count, 1}), thresholds);
    const Value yes = cast(above, DType::F64), no = cast(logical_not(above), DType::F64);
    const Value positives = reshape(batch.positives, Ints{count, 1});
    const Value negatives = reshape(batch.negatives, Ints{count, 1});
    add_to(0, reduce_sum(positives * yes, {.axes = {0}}));
    add_to(1, reduce_sum(negatives * no, {.axes = {0}}));
    add_to(2, reduce_sum(negatives * yes, {.axes = {0}}));
    add_to(3, reduce_sum(positives * no, {.axes = {0}}));
  }

  double result(std::span<const Tensor> state) const override {
    const auto true_positives = state[0].values<double>(),
               true_negatives = state[1].values<double>();
    const auto false_positives = state[2].values<double>(),
               false_negatives = state[3].values<double>();
    double area = 0, last_x = 0, last_y = 0;
    for (std::size_t i = 0; i < thresholds_.size(); ++i) {
      const double x = ratio(false_positives[i], false_positives[i] + true_negatives[i]);
      const double y = ratio(true_positives[i], true_positives[i] + false_negatives[i]);
      if (i > 0) area += (last_x - x) * (last_y + y) / 2;
      last_x = x;
      last_y = y;
    }
    return area;
  }

 private:
  bool from_logits_;
  std::vector<float> thresholds_;
};

}  // namespace

Metric Precision(ThresholdOptions options) {
  return Metric(
      std::make_shared<ThresholdMetric>(ThresholdMetric::Kind::Precision, std::move(options)));
}

Metric Recall(ThresholdOptions options) {
  return Metric(
      std::make_shared<ThresholdMetric>(ThresholdMetric::Kind::Recall, std::move(options)));
}

Metric AUC(AUCOptions options) {
  require(options.num_thresholds >= 2, "[auc] num_thresholds must be 2 or more, got {}",
          options.num_thresholds);
  return Metric(std::make_shared<AreaMetric>(std::move(options)));
}

}  // namespace lockstep
