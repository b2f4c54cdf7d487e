#include "lockstep/nn/layers/dropout.h"

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"
#include "lockstep/graph/ops/random.h"
#include "lockstep/nn/layers/argument.h"

namespace lockstep {
namespace {

class DropoutLayer final : public LayerBase {
 public:
  explicit DropoutLayer(double rate) : rate_(rate) {
    require(rate >= 0 && rate < 1, "[dropout] the rate must be in [0, 1), got {}", rate);
  }
  std::string kind() const override { return "Dropout"; }
  Value call(std::span<const Value> inputs, const CallOptions& options) override {
    const Value x = only(inputs);
    require_floats(x.type());
    if (!options.training || rate_ == 0) return x;
    return dropout(x, {.rate = rate_, .seed = options.seed, .key = hash_name(path())});
  }

 private:
  double rate_;
};

}  // namespace

Dropout::Dropout(DropoutLayerOptions options)
    : Layer(make_named_layer<DropoutLayer>(options.name, options.rate)) {}

Dropout::Dropout(double rate, DropoutLayerOptions options)
    : Dropout(
          with_argument("dropout", "rate", &DropoutLayerOptions::rate, rate, std::move(options))) {}

}  // namespace lockstep
