#include "lockstep/nn/loss.h"

#include <array>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/graph/ops/shape.h"
#include "lockstep/graph/ops/softmax.h"
#include "lockstep/nn/labels.h"
#include "lockstep/nn/logits.h"

namespace lockstep {
namespace {

// As in Keras: probabilities are clipped this far from 0 and 1 before their logarithm is taken.
constexpr double kEpsilon = 1e-7;

Value clip(Value x, double low, double high) {
  Graph& graph = x.graph();
  return minimum(maximum(x, graph.scalar(low, x.dtype())), graph.scalar(high, x.dtype()));
}

Value clip_probabilities(Value p) {
  return clip(p, kEpsilon, 1 - kEpsilon);
}

// The mean over all axes except the first.
Value mean_per_example(Value x) {
  if (x.shape().rank() <= 1) return x;
  Ints axes;
  for (int axis = 1; axis < x.shape().rank(); ++axis) axes.push_back(axis);
  return reduce_mean(x, {.axes = std::move(axes)});
}

// The mean over one axis, as Keras reduces elementwise losses; a value with only one axis is
// returned as it is.
Value mean_over(Value x, int axis) {
  return x.shape().rank() <= 1 ? x : reduce_mean(x, {.axes = {axis}});
}

// An axis as a non-negative index; negative axes count from the end.
int axis_of(std::string_view what, Value x, int axis) {
  const int rank = x.shape().rank();
  require(axis >= -rank && axis < rank, "[{}] axis {} is not one of the {} axes of {}", what, axis,
          rank, x.shape());
  return axis < 0 ? axis + rank : axis;
}

// The same elements with one axis moved to the end.
Value with_axis_last(Value x, int axis) {
  const int rank = x.shape().rank();
  if (axis == rank - 1) return x;
  Ints order;
  for (int i = 0; i < rank; ++i) {
    if (i != axis) order.push_back(i);
  }
  order.push_back(axis);
  return transpose(x, std::move(order));
}

Value one_minus(Value x) {
  return x.graph().scalar(1, x.dtype()) - x;
}

void require_smoothing(std::string_view what, double smoothing) {
  require(smoothing >= 0 && smoothing <= 1, "[{}] label_smoothing must be in [0, 1], got {}", what,
          smoothing);
}

// With smoothing s, a label is s / C everywhere, plus 1 - s on its class: the loss mixes the sparse
// loss and the mean over all classes.
Value sparse_categorical(Value labels, Value predictions, const CrossentropyOptions& options) {
  const char* what = "sparse_categorical_crossentropy";
  const int axis = axis_of(what, predictions, options.axis);
  const Scores scores = scores_of(what, predictions, Squashing::Softmax, axis, options.from_logits);
  predictions = with_axis_last(scores.values, axis);
  const Value classes = class_labels(what, labels, predictions);
  const Value logits = scores.logits ? predictions : log(clip_probabilities(predictions));
  const Value loss = sparse_cross_entropy(logits, classes);
  const double smoothing = options.label_smoothing;
  if (smoothing == 0) return loss;
  const Value uniform = -reduce_mean(log_softmax(logits), {.axes = {-1}});
  return loss * (1 - smoothing) + uniform * smoothing;
}

Value categorical(Value labels, Value predictions, const CrossentropyOptions& options) {
  const char* what = "categorical_crossentropy";
  require(labels.shape() == predictions.shape() && predictions.shape().rank() >= 2,
          "[{}] labels {} do not match predictions {}: give one probability per class, or use "
          "sparse_categorical_crossentropy for class numbers",
          what, labels.shape(), predictions.shape());
  const int axis = axis_of(what, predictions, options.axis);
  Value target = with_axis_last(align(what, labels, predictions).labels, axis);
  const Scores scores = scores_of(what, predictions, Squashing::Softmax, axis, options.from_logits);
  predictions = with_axis_last(scores.values, axis);
  const double smoothing = options.label_smoothing;
  if (smoothing != 0) {
    const auto classes = static_cast<double>(predictions.shape()[-1]);
    target = target * (1 - smoothing) + smoothing / classes;
  }
  if (scores.logits) return cross_entropy(predictions, target);
  const Value total = reduce_sum(predictions, {.axes = {-1}, .keepdims = true});
  return -reduce_sum(target * log(clip_probabilities(predictions / total)), {.axes = {-1}});
}

Value binary(Value labels, Value predictions, const CrossentropyOptions& options) {
  const char* what = "binary_crossentropy";
  auto [target, p] = align(what, labels, predictions);
  const int axis = axis_of(what, predictions, options.axis);
  if (options.label_smoothing != 0) {
    target = target * (1 - options.label_smoothing) + 0.5 * options.label_smoothing;
  }
  const Scores scores = scores_of(what, p, Squashing::Sigmoid, axis, options.from_logits);
  p = scores.values;
  if (scores.logits) return mean_over(sigmoid_cross_entropy(p, target), axis);
  p = clip_probabilities(p);
  return mean_over(-(target * log(p) + one_minus(target) * log(one_minus(p))), axis);
}

}  // namespace

Value Loss::per_example(Value labels, Value predictions) const {
  require(defined(), "[loss] no loss was given");
  const Graph::NameScope scope(predictions.graph(), name_);
  return mean_per_example(per_example_(labels, full_precision(predictions)));
}

// There may be one weight per example or per position, so they are applied before positions are
// averaged.
LossPair Loss::operator()(Value labels, Value predictions, Value sample_weight) const {
  require(defined(), "[loss] no loss was given");
  Graph& graph = predictions.graph();
  const Graph::NameScope scope(graph, name_);
  Value losses = per_example_(labels, full_precision(predictions));
  require(losses.shape().rank() >= 1, "[{}] returns {}, not one loss per example", name_,
          losses.type().str());
  if (sample_weight.defined()) losses = losses * fit_weights(name_, sample_weight, losses);
  const auto examples = static_cast<double>(losses.shape()[0]);
  return {cast(reduce_sum(mean_per_example(losses)), DType::F32), graph.scalar(examples)};
}

Loss SparseCategoricalCrossentropy(CrossentropyOptions options) {
  require_smoothing("sparse_categorical_crossentropy", options.label_smoothing);
  return {"sparse_categorical_crossentropy", [options](Value labels, Value predictions) {
            return sparse_categorical(labels, predictions, options);
          }};
}

Loss CategoricalCrossentropy(CrossentropyOptions options) {
  require_smoothing("categorical_crossentropy", options.label_smoothing);
  return {"categorical_crossentropy", [options](Value labels, Value predictions) {
            return categorical(labels, predictions, options);
          }};
}

Loss BinaryCrossentropy(CrossentropyOptions options) {
  require_smoothing("binary_crossentropy", options.label_smoothing);
  return {"binary_crossentropy", [options](Value labels, Value predictions) {
            return binary(labels, predictions, options);
          }};
}

Loss MeanSquaredError() {
  return {"mean_squared_error", [](Value labels, Value predictions) {
            const Aligned pair = align("mean_squared_error", labels, predictions);
            return mean_over_features(square(pair.predictions - pair.labels));
          }};
}

Loss MeanAbsoluteError() {
  return {"mean_absolute_error", [](Value labels, Value predictions) {
            const Aligned pair = align("mean_absolute_error", labels, predictions);
            return mean_over_features(abs(pair.predictions - pair.labels));
          }};
}

Loss Huber(HuberOptions options) {
  require(options.delta > 0, "[huber] delta must be above 0, got {}", options.delta);
  return {"huber", [delta = options.delta](Value labels, Value predictions) {
            const Aligned pair = align("huber", labels, predictions);
            const Value size = abs(pair.predictions - pair.labels);
            const Value small = less_equal(size, size.graph().scalar(delta, size.dtype()));
            return mean_over_features(
                select(small, square(size) * 0.5, size * delta - 0.5 * delta * delta));
          }};
}

LossPair sparse_categorical_crossentropy(Value labels, Value predictions,
                                         const CrossentropyOptions& options, Value sample_weight) {
  return SparseCategoricalCrossentropy(options)(labels, predictions, sample_weight);
}

LossPair categorical_crossentropy(Value labels, Value predictions,
                                  const CrossentropyOptions& options, Value sample_weight) {
  return CategoricalCrossentropy(options)(labels, predictions, sample_weight);
}

LossPair binary_crossentropy(Value labels, Value predictions, const CrossentropyOptions& options,
                             Value sample_weight) {
  return BinaryCrossentropy(options)(labels, predictions, sample_weight);
}

LossPair mean_squared_error(Value labels, Value predictions, Value sample_weight) {
  return MeanSquaredError()(labels, predictions, sample_weight);
}

Value compute_average_loss(Value per_example, std::int64_t global_batch_size, Value sample_weight) {
  require(global_batch_size >= 0, "[compute_average_loss] the global batch has {} samples",
          global_batch_size);
  Graph& graph = per_example.graph();
  if (global_batch_size == 0) return graph.scalar(0.0, per_example.dtype());
  if (sample_weight.defined()) per_example = per_example * sample_weight;
  return reduce_sum(per_example) / static_cast<double>(global_batch_size);
}

Loss loss_by_name(const std::string& name) {
  if (name == "sparse_categorical_crossentropy") return SparseCategoricalCrossentropy();
  if (name == "categorical_crossentropy") return CategoricalCrossentropy();
  if (name == "binary_crossentropy") return BinaryCrossentropy();
  if (name == "mean_squared_error" || name == "mse") return MeanSquaredError();
  if (name == "mean_absolute_error" || name == "mae") return MeanAbsoluteError();
  if (name == "huber") return Huber();
  fail<UsageError>(
      "[loss] there is no loss called {}; there are: sparse_categorical_crossentropy, "
      "categorical_crossentropy, binary_crossentropy, mean_squared_error (mse), "
      "mean_absolute_error (mae), huber",
      name);
}

Loss::Loss(const char* name) : Loss(loss_by_name(name)) {}

Loss::Loss(const std::string& name) : Loss(loss_by_name(name)) {}

}  // namespace lockstep
