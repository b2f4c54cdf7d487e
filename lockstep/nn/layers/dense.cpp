#include "lockstep/nn/layers/dense.h"

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/matmul.h"
#include "lockstep/nn/layers/activation.h"
#include "lockstep/nn/layers/argument.h"

namespace lockstep {
namespace {

class DenseLayer final : public LayerBase {
 public:
  explicit DenseLayer(DenseOptions options) : options_(std::move(options)) {
    require(options_.units > 0, "[dense] {}units must be above 0, got {}",
            options_.name.empty() ? "" : options_.name + ": ", options_.units);
    require_activation(options_.activation);
  }
  std::string kind() const override { return "Dense"; }

  void build(std::span<const ValueType> inputs) override {
    const ValueType& x = only(inputs);
    require(x.shape.rank() >= 2, "{}expects (N, …, features), got {}", where(), x.shape);
    kernel_ = add_variable(
        "kernel", {x.shape[-1], options_.units},
        {.initializer = options_.kernel_initializer, .regularizer = options_.kernel_regularizer});
    if (!options_.use_bias) return;
    bias_ = add_variable(
        "bias", {options_.units},
        {.initializer = options_.bias_initializer, .regularizer = options_.bias_regularizer});
  }

  Value call(std::span<const Value> inputs, const CallOptions&) override {
    const Value x = as_floats(only(inputs));
    Graph& graph = x.graph();
    const Value kernel = graph.variable(kernel_);
    const Value y = bias_ ? matmul(x, kernel, graph.variable(bias_)) : matmul(x, kernel);
    return activate(y, options_.activation);
  }

 private:
  DenseOptions options_;
  VariableRef kernel_, bias_;
};

}  // namespace

Dense::Dense(DenseOptions options) : Layer(make_named_layer<DenseLayer>(options.name, options)) {}

Dense::Dense(std::int64_t units, DenseOptions options)
    : Dense(with_argument("dense", "units", &DenseOptions::units, units, std::move(options))) {}

}  // namespace lockstep
