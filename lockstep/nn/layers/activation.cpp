#include "lockstep/nn/layers/activation.h"

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/softmax.h"
#include "lockstep/nn/layers/argument.h"

namespace lockstep {
namespace {

class ActivationLayer final : public LayerBase {
 public:
  explicit ActivationLayer(ActivationOptions options, std::string kind = "Activation")
      : options_(std::move(options)), kind_(std::move(kind)) {
    require_activation(options_.activation);
  }
  std::string kind() const override { return kind_; }
  Value call(std::span<const Value> inputs, const CallOptions&) override {
    const Value x = only(inputs);
    require_floats(x.type());
    return activate(x, options_.activation, options_.negative_slope);
  }

 private:
  ActivationOptions options_;
  std::string kind_;
};

}  // namespace

Activation::Activation(ActivationOptions options)
    : Layer(make_named_layer<ActivationLayer>(options.name, options)) {}

ActivationOptions Activation::named(std::string activation, ActivationOptions options) {
  return with_argument("activation", "activation", &ActivationOptions::activation, activation,
                       std::move(options));
}

ReLU::ReLU(ReLUOptions options) {
  require(!options.max_value || *options.max_value == 6.0,
          "[re_lu] max_value is {}; it must be 6, or not set", options.max_value.value_or(0));
  *static_cast<Layer*>(this) = make_named_layer<ActivationLayer>(
      options.name, ActivationOptions{.activation = options.max_value ? "relu6" : "relu"}, "ReLU");
}

LeakyReLU::LeakyReLU(LeakyReLUOptions options)
    : Layer(make_named_layer<ActivationLayer>(
          options.name,
          ActivationOptions{.activation = "leaky_relu", .negative_slope = options.negative_slope},
          "LeakyReLU")) {}

LeakyReLU::LeakyReLU(double negative_slope, LeakyReLUOptions options)
    : LeakyReLU(with_argument("leaky_re_lu", "negative_slope", &LeakyReLUOptions::negative_slope,
                              negative_slope, std::move(options))) {}

Softmax::Softmax(SoftmaxOptions options)
    : Layer(make_named_layer<ActivationLayer>(
          options.name, ActivationOptions{.activation = "softmax"}, "Softmax")) {}

Value activate(Value x, const std::string& kind, double negative_slope) {
  if (kind.empty() || kind == "linear") return x;
  if (kind == "softmax") return softmax(x);
  if (kind == "log_softmax") return log_softmax(x);
  return activation(x, kind, negative_slope);
}

void require_activation(const std::string& kind) {
  static constexpr std::array<const char*, 13> kinds = {
      "",     "linear", "relu",    "relu6",    "leaky_relu", "gelu",       "gelu_tanh",
      "silu", "tanh",   "sigmoid", "softplus", "softmax",    "log_softmax"};
  if (std::ranges::find(kinds, kind) != kinds.end()) return;
  fail<UsageError>("[activation] there is no activation called {}; there are: {}", kind,
                   fmt::join(kinds.begin() + 1, kinds.end(), ", "));
}

}  // namespace lockstep
