#include "lockstep/nn/layers/normalization.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/collective.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/norm.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/graph/ops/state.h"

namespace lockstep {
namespace {

// The variable's value or, if there is no variable, the same number for every channel.
Value or_constant(Graph& graph, const VariableRef& variable, std::int64_t channels, float value) {
  if (variable) return graph.variable(variable);
  return graph.constant(
      Tensor::of(std::vector<float>(static_cast<std::size_t>(channels), value), {channels}));
}

bool is_assigned(Graph& graph, const VariableRef& variable) {
  const ValueId id = graph.variable(variable).id();
  return std::any_of(graph.nodes().begin(), graph.nodes().end(), [&](const Node& node) {
    return node.op == Op::Assign && node.inputs[0] == id;
  });
}

class BatchNormLayer final : public LayerBase {
 public:
  explicit BatchNormLayer(BatchNormalizationOptions options) : options_(std::move(options)) {
    require(options_.momentum >= 0 && options_.momentum <= 1,
            "[batch_normalization] momentum must be in [0, 1], got {}", options_.momentum);
  }
  std::string kind() const override { return "BatchNormalization"; }

  void build(std::span<const ValueType> inputs) override {
    const ValueType& x = only(inputs);
    require(x.shape.rank() >= 2, "{}expects (N, …, features), got {}", where(), x.shape);
    require_floats(x);
    const Shape channels{x.shape[-1]};
    if (options_.scale) {
      gamma_ = add_variable(
          "gamma", channels,
          {.initializer = options_.gamma_initializer, .regularizer = options_.gamma_regularizer});
    }
    if (options_.center) {
      beta_ = add_variable(
          "beta", channels,
          {.initializer = options_.beta_initializer, .regularizer = options_.beta_regularizer});
    }
    mean_ = add_variable("moving_mean", channels,
                         {.trainable = false, .initializer = options_.moving_mean_initializer});
    variance_ =
        add_variable("moving_variance", channels,
                     {.trainable = false, .initializer = options_.moving_variance_initializer});
  }

  Value call(std::span<const Value> inputs, const CallOptions& options) override {
    const Value x = only(inputs);
    Graph& graph = x.graph();
    const Value gamma = or_constant(graph, gamma_, x.shape()[-1], 1);
    const Value beta = or_constant(graph, beta_, x.shape()[-1], 0);
    const Value mean = graph.variable(mean_), variance = graph.variable(variance_);
    if (!options.training || !trainable()) {
      return batch_norm_inference(x, gamma, beta, mean, variance, options_.epsilon);
    }
    const Normalized result = options_.synchronized ? with_global_statistics(x, gamma, beta)
                                                    : with_local_statistics(x, gamma, beta);
    if (!is_assigned(graph, mean_)) {
      update_average(mean_, result.mean, result.count);
      update_average(variance_, result.variance, result.count);
    }
    return result.y;
  }

 private:
  // The result, and what the moving averages are updated with; count is 0 if no replica has
  // samples.
  struct Normalized {
    Value y, mean, variance, count;
  };

  // With the statistics of this replica's piece. The moving averages are updated with their mean
  // over the replicas that have samples; nothing else in the step waits for that.
  Normalized with_local_statistics(Value x, Value gamma, Value beta) const {
    Graph& graph = x.graph();
    const BatchNormResult result = batch_norm(x, gamma, beta, options_.epsilon);
    const bool empty = x.shape().elements() == 0;
    const Value none = graph.constant(Tensor(x.dtype(), result.mean.shape()));
    // How many replicas have samples, once per channel, so that what follows is one pass over
    // memory.
    const Value some = none + graph.scalar(empty ? 0.0 : 1.0, x.dtype());
    const Value values[] = {empty ? none : result.mean, empty ? none : result.variance, some};
    const std::vector<Value> sums = all_reduce_aside(values);
    const Value count = maximum(sums[2], graph.scalar(1.0, x.dtype()));
    return {result.y, sums[0] / count, sums[1] / count, sums[2]};
  }

  // With the statistics of all replicas' samples: first their mean, then the mean square around it,
  // which stays accurate if the mean is large. Gradients flow through both all-reduces.
  Normalized with_global_statistics(Value x, Value gamma, Value beta) const {
    Graph& graph = x.graph();
    const std::int64_t channels = x.shape()[-1];
    const std::int64_t here = channels == 0 ? 0 : x.shape().elements() / channels;
    Ints axes;
    for (int axis = 0; axis + 1 < x.shape().rank(); ++axis) axes.push_back(axis);
    const Value values[] = {reduce_sum(x, {.axes = axes}),
                            graph.scalar(static_cast<double>(here), x.dtype())};
    const std::vector<Value> sums = all_reduce(values);
    const Value count = maximum(sums[1], graph.scalar(1.0, x.dtype()));
    const Value mean = sums[0] / count;
    const Value variance = all_reduce(reduce_sum(square(x - mean), {.axes = axes})) / count;
    return {batch_norm_inference(x, gamma, beta, mean, variance, options_.epsilon), mean, variance,
            sums[1]};
  }

  void update_average(const VariableRef& average, Value batch, Value count) const {
    Graph& graph = batch.graph();
    const Value before = graph.variable(average);
    const Value moved = before * options_.momentum + batch * (1 - options_.momentum);
    assign(average, select(greater(count, graph.scalar(0.0, count.dtype())), moved, before));
  }

  BatchNormalizationOptions options_;
  VariableRef gamma_, beta_, mean_, variance_;
};

class LayerNormLayer final : public LayerBase {
 public:
  explicit LayerNormLayer(LayerNormalizationOptions options) : options_(std::move(options)) {}
  std::string kind() const override { return "LayerNormalization"; }

  void build(std::span<const ValueType> inputs) override {
    const ValueType& x = only(inputs);
    require(x.shape.rank() >= 2, "{}expects (N, …, features), got {}", where(), x.shape);
    require_floats(x);
    const Shape channels{x.shape[-1]};
    if (options_.scale) {
      gamma_ = add_variable(
          "gamma", channels,
          {.initializer = options_.gamma_initializer, .regularizer = options_.gamma_regularizer});
    }
    if (options_.center) {
      beta_ = add_variable(
          "beta", channels,
          {.initializer = options_.beta_initializer, .regularizer = options_.beta_regularizer});
    }
  }

  Value call(std::span<const Value> inputs, const CallOptions&) override {
    const Value x = only(inputs);
    return layer_norm(x, or_constant(x.graph(), gamma_, x.shape()[-1], 1),
                      or_constant(x.graph(), beta_, x.shape()[-1], 0), options_.epsilon);
  }

 private:
  LayerNormalizationOptions options_;
  VariableRef gamma_, beta_;
};

}  // namespace

BatchNormalization::BatchNormalization(BatchNormalizationOptions options)
    : Layer(make_named_layer<BatchNormLayer>(options.name, options)) {}

LayerNormalization::LayerNormalization(LayerNormalizationOptions options)
    : Layer(make_named_layer<LayerNormLayer>(options.name, options)) {}

}  // namespace lockstep
