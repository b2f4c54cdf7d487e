// Activation: a nonlinearity by name.
#pragma once

#include <concepts>
#include <string>

#include "lockstep/nn/layer.h"

namespace lockstep {

struct ActivationOptions {
  std::string kind = "linear";  // see activate()
  double alpha = 0.2;           // leaky_relu's slope below zero
  std::string name = "";
};

// Activation("relu"), Activation({.kind = "leaky_relu", .alpha = 0.1}).
struct Activation : Layer {
  explicit Activation(ActivationOptions options);
  template <std::convertible_to<std::string> Text>
  explicit Activation(const Text& kind) : Activation(ActivationOptions{.kind = kind}) {}
};

// What layers do with their `activation` option: the kinds of ops/elementwise.h, "softmax" and
// "log_softmax" over the last axis; "" and "linear" give x itself.
Value activate(Value x, const std::string& kind, double alpha = 0.2);

// UsageError, with the list, where there is no activation of this name.
void require_activation(const std::string& kind);

}  // namespace lockstep
