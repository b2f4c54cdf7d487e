#include "lockstep/nn/layers/activation.h"

#include <algorithm>
#include <array>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/graph/ops/softmax.h"

namespace lockstep {
namespace {

class ActivationLayer final : public LayerBase {
 public:
  explicit ActivationLayer(ActivationOptions options) : options_(std::move(options)) {
    require_activation(options_.kind);
  }
  std::string kind() const override { return "Activation"; }
  Value call(std::span<const Value> inputs, const CallOptions&) override {
    const Value x = only(inputs);
    require_floats(x.type());
    return activate(x, options_.kind, options_.alpha);
  }

 private:
  ActivationOptions options_;
};

}  // namespace

Activation::Activation(ActivationOptions options)
    : Layer(make_named_layer<ActivationLayer>(options.name, options)) {}

Value activate(Value x, const std::string& kind, double alpha) {
  if (kind.empty() || kind == "linear") return x;
  if (kind == "softmax") return softmax(x);
  if (kind == "log_softmax") return log_softmax(x);
  return activation(x, kind, alpha);
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
