// Activations that are fused into products: applied to a row of results when it is complete.
#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/graph/attrs.h"

namespace lockstep {

enum class FusedActivation {
  None,
  Relu,
  Relu6,
  LeakyRelu,
  Gelu,
  GeluTanh,
  Silu,
  Tanh,
  Sigmoid,
  Softplus
};

inline FusedActivation fused_activation(const Attrs& attrs) {
  const std::string kind = attrs.text_or_empty("activation");
  if (kind.empty() || kind == "linear") return FusedActivation::None;
  if (kind == "relu") return FusedActivation::Relu;
  if (kind == "relu6") return FusedActivation::Relu6;
  if (kind == "leaky_relu") return FusedActivation::LeakyRelu;
  if (kind == "gelu") return FusedActivation::Gelu;
  if (kind == "gelu_tanh") return FusedActivation::GeluTanh;
  if (kind == "silu") return FusedActivation::Silu;
  if (kind == "tanh") return FusedActivation::Tanh;
  if (kind == "sigmoid") return FusedActivation::Sigmoid;
  if (kind == "softplus") return FusedActivation::Softplus;
  fail<UsageError>("{} is no activation", kind);
}

template <class T>
T activated(FusedActivation kind, T x, T alpha) {
  const auto logistic = [](T z) { return T(1) / (T(1) + std::exp(-z)); };
  switch (kind) {
    case FusedActivation::None:
      return x;
    case FusedActivation::Relu:
      return x < 0 ? T(0) : x;
    case FusedActivation::Relu6:
      return x < 0 ? T(0) : (x > 6 ? T(6) : x);
    case FusedActivation::LeakyRelu:
      return x < 0 ? alpha * x : x;
    case FusedActivation::Gelu:
      return x / 2 * (1 + std::erf(x / std::numbers::sqrt2_v<T>));
    case FusedActivation::GeluTanh:
      return x / 2 * (1 + std::tanh(T(0.7978845608028654) * (x + T(0.044715) * x * x * x)));
    case FusedActivation::Silu:
      return x * logistic(x);
    case FusedActivation::Tanh:
      return std::tanh(x);
    case FusedActivation::Sigmoid:
      return logistic(x);
    case FusedActivation::Softplus:
      return std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x)));
  }
  return x;
}

// The activation of a node's attributes, ready to be applied to rows.
template <class T>
class RowActivation {
 public:
  explicit RowActivation(const Attrs& attrs)
      : kind_(fused_activation(attrs)),
        alpha_(static_cast<T>(attrs.has("alpha") ? attrs.real("alpha") : 0.2)) {}

  void apply(T* row, std::int64_t count) const {
    if (kind_ == FusedActivation::None) return;
    for (std::int64_t i = 0; i < count; ++i) row[i] = activated(kind_, row[i], alpha_);
  }

 private:
  FusedActivation kind_;
  T alpha_;
};

}  // namespace lockstep
