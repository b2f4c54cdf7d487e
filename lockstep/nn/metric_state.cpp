#include "lockstep/nn/metric_state.h"

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/graph/ops/shape.h"
#include "lockstep/graph/ops/state.h"
#include "lockstep/nn/labels.h"

namespace lockstep {
namespace {

class MeanMetric final : public SumMetric {
 public:
  MeanMetric(std::string name, MetricValues values)
      : SumMetric(std::move(name), {{"total"}, {"count"}}), values_(std::move(values)) {}

  void update(Value labels, Value predictions, Value sample_weight) override {
    Graph& graph = predictions.graph();
    const Graph::NameScope scope(graph, "metrics/" + name());
    Value values = cast(values_(labels, predictions), DType::F64);
    Value count = graph.scalar(static_cast<double>(values.shape().elements()), DType::F64);
    if (sample_weight.defined()) {
      const Value weights =
          broadcast_to(fit_weights(name(), sample_weight, values), values.shape());
      values = values * weights;
      count = reduce_sum(weights);
    }
    add_to(0, reduce_sum(values));
    add_to(1, count);
  }

  double result(std::span<const Tensor> state) const override {
    return ratio(state[0].item(), state[1].item());
  }

 private:
  MetricValues values_;
};

class LossMeanMetric final : public SumMetric {
 public:
  explicit LossMeanMetric(std::string name) : SumMetric(std::move(name), {{"total"}, {"count"}}) {}

  void update(Value sum, Value weight, Value) override {
    const Graph::NameScope scope(sum.graph(), "metrics/" + name());
    add_to(0, cast(sum, DType::F64));
    add_to(1, cast(weight, DType::F64));
  }

  double result(std::span<const Tensor> state) const override {
    return ratio(state[0].item(), state[1].item());
  }
};

}  // namespace

SumMetric::SumMetric(std::string name, const std::vector<Sum>& sums) : name_(std::move(name)) {
  for (const Sum& sum : sums) {
    auto variable = std::make_shared<Variable>();
    variable->name = fmt::format("metrics/{}/{}", name_, sum.name);
    variable->dtype = DType::F64;
    variable->shape = sum.shape;
    variable->trainable = false;
    variable->placement = Placement::local();
    variables_.push_back(std::move(variable));
  }
}

void SumMetric::add_to(std::size_t i, Value amount) const {
  const VariableRef& sum = variables_[i];
  assign(sum, amount.graph().variable(sum) + amount);
}

Metric mean_metric(std::string name, MetricValues values) {
  return Metric(std::make_shared<MeanMetric>(std::move(name), std::move(values)));
}

double ratio(double x, double y) {
  return y == 0 ? 0 : x / y;
}

Metric LossMean(std::string name) {
  return Metric(std::make_shared<LossMeanMetric>(std::move(name)));
}

}  // namespace lockstep
