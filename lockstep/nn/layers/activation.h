// Activation: a nonlinearity by name.
#pragma once

#include <concepts>
#include <optional>
#include <string>

#include "lockstep/nn/layer.h"

namespace lockstep {

struct ActivationOptions {
  std::string activation = "linear";  // see activate()
  double negative_slope = 0.2;        // leaky_relu's, below zero
  std::string name = "";
};

// Activation("relu"), Activation({.activation = "leaky_relu", .negative_slope = 0.1}).
struct Activation : Layer {
  explicit Activation(ActivationOptions options);
  template <std::convertible_to<std::string> Text>
  explicit Activation(const Text& activation, ActivationOptions options = {})
      : Activation(named(activation, std::move(options))) {}

 private:
  static ActivationOptions named(std::string activation, ActivationOptions options);
};

struct ReLUOptions {
  std::optional<double> max_value = {};  // none, or 6
  std::string name = "";
};
struct ReLU : Layer {
  explicit ReLU(ReLUOptions options = {});
};

struct LeakyReLUOptions {
  double negative_slope = 0.3;
  std::string name = "";
};
struct LeakyReLU : Layer {
  explicit LeakyReLU(LeakyReLUOptions options = {});
  explicit LeakyReLU(double negative_slope, LeakyReLUOptions options = {});
};

struct SoftmaxOptions {
  std::string name = "";
};
// Over the last axis.
struct Softmax : Layer {
  explicit Softmax(SoftmaxOptions options = {});
};

// What layers do with their `activation` option: the kinds of ops/elementwise.h, "softmax" and
// "log_softmax" over the last axis; "" and "linear" return x itself.
Value activate(Value x, const std::string& kind, double negative_slope = 0.2);

// UsageError, with the list, if there is no activation of this name.
void require_activation(const std::string& kind);

}  // namespace lockstep
