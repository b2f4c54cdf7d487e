// InputLayer: declares the input of a Sequential network.
#pragma once

#include "lockstep/nn/layer.h"

namespace lockstep {

// InputLayer({.shape = {28, 28, 1}}): checks its input and passes it on.
struct InputLayer : Layer {
  explicit InputLayer(InputOptions options);
  explicit InputLayer(Extents shape, InputOptions options = {});  // InputLayer({28, 28})
};

// The layer itself, for networks that read its type.
class InputLayerBase final : public LayerBase {
 public:
  explicit InputLayerBase(ValueType type) : type_(std::move(type)) {}
  std::string kind() const override { return "InputLayer"; }
  Value call(std::span<const Value> inputs, const CallOptions& options) override;
  const ValueType& type() const { return type_; }  // with a batch of 1

 private:
  ValueType type_;
};

}  // namespace lockstep
