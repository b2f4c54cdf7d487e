#include "lockstep/nn/layers/rescaling.h"

#include "lockstep/graph/ops/elementwise.h"
#include "lockstep/nn/layers/argument.h"

namespace lockstep {
namespace {

class RescalingLayer final : public LayerBase {
 public:
  RescalingLayer(double scale, double offset) : scale_(scale), offset_(offset) {}
  std::string kind() const override { return "Rescaling"; }
  Value call(std::span<const Value> inputs, const CallOptions&) override {
    Value x = only(inputs);
    if (!is_floating(x.dtype())) x = cast(x, DType::F32);
    if (scale_ != 1) x = x * scale_;
    return offset_ == 0 ? x : x + offset_;
  }

 private:
  double scale_, offset_;
};

}  // namespace

Rescaling::Rescaling(RescalingOptions options)
    : Layer(make_named_layer<RescalingLayer>(options.name, options.scale, options.offset)) {}

Rescaling::Rescaling(double scale, RescalingOptions options)
    : Rescaling(with_argument("rescaling", "scale", &RescalingOptions::scale, scale,
                              std::move(options))) {}

}  // namespace lockstep
