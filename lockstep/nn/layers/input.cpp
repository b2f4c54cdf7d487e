#include "lockstep/nn/layers/input.h"

#include "lockstep/base/error.h"
#include "lockstep/nn/layers/argument.h"

namespace lockstep {

Value InputLayerBase::call(std::span<const Value> inputs, const CallOptions&) {
  const Value x = only(inputs);
  const bool fits = x.dtype() == type_.dtype && x.shape().rank() == type_.shape.rank() &&
                    x.shape().with(0, 1) == type_.shape;
  require(fits, "{}expects {}{}, got {}", where(), name_of(type_.dtype),
          shape_without_batch(type_.shape), x.type().str());
  return x;
}

InputLayer::InputLayer(InputOptions options)
    : Layer(make_named_layer<InputLayerBase>(options.name, Input(options).type())) {}

InputLayer::InputLayer(Extents shape, InputOptions options)
    : InputLayer(with_argument("input_layer", "shape", &InputOptions::shape,
                               Shape(std::move(shape.values)), std::move(options))) {}

}  // namespace lockstep
