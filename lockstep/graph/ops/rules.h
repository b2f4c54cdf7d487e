// Helpers for the rules of several op families.
#pragma once

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/graph/op_def.h"
#include "lockstep/graph/ops/elementwise.h"

namespace lockstep {

// Bytes of all inputs and outputs, each touched once.
inline double bytes_moved(const OpCall& call, std::span<const ValueType> outputs) {
  double bytes = 0;
  const auto count = [&](const ValueType& type) {
    bytes += static_cast<double>(type.shape.elements()) * static_cast<double>(size_of(type.dtype));
  };
  for (const ValueType& type : call.inputs) count(type);
  for (const ValueType& type : outputs) count(type);
  return bytes;
}

// A cost of kFlopsPerElement operations per element of input 0.
template <int kFlopsPerElement>
Cost cost_per_element(const OpCall& call, std::span<const ValueType> outputs) {
  return {kFlopsPerElement * static_cast<double>(call.shape(0).elements()),
          bytes_moved(call, outputs)};
}

inline void require_floating(const OpCall& call, std::size_t input, std::string_view what) {
  require(is_floating(call.dtype(input)), "{} must be floating-point, not {}", what,
          call.inputs[input].str());
}

// Requires that an input has exactly this type.
inline void require_type(const OpCall& call, std::size_t input, const ValueType& type,
                         std::string_view what) {
  require(call.inputs[input] == type, "{} must be {}, not {}", what, type.str(),
          call.inputs[input].str());
}

inline bool has_activation(std::string_view kind) {
  return !kind.empty() && kind != "linear";
}

// Adds a fused activation to a node's attributes, if there is one.
inline void set_activation(Attrs& attrs, const std::string& kind, double alpha) {
  if (!has_activation(kind)) return;
  attrs.set("activation", kind);
  attrs.set("alpha", alpha);
}

// The gradient of the value that a node's fused activation was applied to. Only the activation's
// output is available.
inline Value gradient_before_activation(const GradCall& call) {
  const std::string kind = call.attrs.text_or_empty("activation");
  if (!has_activation(kind)) return call.grads[0];
  require(activation_grad_uses_output(kind),
          "the gradient of a fused {} needs the activation's input; apply it as a separate node",
          kind);
  const double alpha = call.attrs.has("alpha") ? call.attrs.real("alpha") : 0.2;
  return activation_grad(call.grads[0], call.outputs[0], kind, alpha);
}

// All axes of a shape except the last.
inline Ints leading_axes(const Shape& shape) {
  Ints axes;
  for (int axis = 0; axis + 1 < shape.rank(); ++axis) axes.push_back(axis);
  return axes;
}

// The shape without its last axis.
inline Shape leading_shape(const Shape& shape) {
  return Shape(std::vector<std::int64_t>(shape.dims().begin(), shape.dims().end() - 1));
}

}  // namespace lockstep
