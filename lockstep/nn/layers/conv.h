// Convolutions over (N, H, W, C) images.
#pragma once

#include <string>

#include "lockstep/nn/initializer.h"
#include "lockstep/nn/layer.h"
#include "lockstep/nn/layers/window.h"
#include "lockstep/nn/regularizer.h"

namespace lockstep {

struct Conv2DOptions {
  std::int64_t filters = 0;
  Pair kernel = 3;
  Pair stride = 1;
  Pair dilation = 1;
  PaddingOption padding = "valid";
  std::int64_t groups = 1;
  std::string activation = "";
  bool use_bias = true;
  Initializer kernel_initializer = GlorotUniform();
  Initializer bias_initializer = Zeros();
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  std::string name = "";
};

// Variables: kernel (kh, kw, C / groups, filters), bias (filters).
struct Conv2D : Layer {
  explicit Conv2D(Conv2DOptions options);
};

struct DepthwiseConv2DOptions {
  Pair kernel = 3;
  Pair stride = 1;
  Pair dilation = 1;
  PaddingOption padding = "valid";
  std::int64_t depth_multiplier = 1;
  std::string activation = "";
  bool use_bias = true;
  Initializer kernel_initializer = GlorotUniform();
  Initializer bias_initializer = Zeros();
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  std::string name = "";
};

// Each channel alone, into depth_multiplier new ones. Variables: kernel (kh, kw, 1, C *
// multiplier), bias (C * multiplier). Initialisers see the kernel as (kh, kw, C, multiplier), as in
// Keras.
struct DepthwiseConv2D : Layer {
  explicit DepthwiseConv2D(DepthwiseConv2DOptions options = {});
};

}  // namespace lockstep
