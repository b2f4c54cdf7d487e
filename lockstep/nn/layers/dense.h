// Dense: a matrix product over the last axis.
#pragma once

#include <string>

#include "lockstep/nn/initializer.h"
#include "lockstep/nn/layer.h"
#include "lockstep/nn/regularizer.h"

namespace lockstep {

struct DenseOptions {
  std::int64_t units = 0;
  std::string activation = "";
  bool use_bias = true;
  Initializer kernel_initializer = GlorotUniform();
  Initializer bias_initializer = Zeros();
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  std::string name = "";
};

// (N, …, k) → (N, …, units). Variables: kernel (k, units), bias (units).
// Dense(10), Dense(128, {.activation = "relu"}), Dense({.units = 10}).
struct Dense : Layer {
  explicit Dense(DenseOptions options);
  explicit Dense(std::int64_t units, DenseOptions options = {});
};

}  // namespace lockstep
