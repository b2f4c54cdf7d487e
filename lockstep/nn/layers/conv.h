// Convolutions over (N, H, W, C) images.
#pragma once

#include <string>

#include "lockstep/nn/initializer.h"
#include "lockstep/nn/layer.h"
#include "lockstep/nn/layers/window.h"
#include "lockstep/nn/regularizer.h"

namespace lockstep {

struct Conv2DOptions {
  ByName by_name = {};
  std::int64_t filters = 0;
  Pair kernel_size = 3;
  Pair strides = 1;
  PaddingOption padding = "valid";
  Pair dilation_rate = 1;
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
// Conv2D(32, 3), Conv2D(32, {3, 5}, {.strides = 2}), Conv2D(32, {.kernel_size = 3}).
struct Conv2D : Layer {
  explicit Conv2D(Conv2DOptions options);
  Conv2D(std::int64_t filters, Conv2DOptions options);
  Conv2D(std::int64_t filters, Pair kernel_size, Conv2DOptions options = {});
};

struct DepthwiseConv2DOptions {
  ByName by_name = {};
  Pair kernel_size = 3;
  Pair strides = 1;
  PaddingOption padding = "valid";
  std::int64_t depth_multiplier = 1;
  Pair dilation_rate = 1;
  std::string activation = "";
  bool use_bias = true;
  Initializer depthwise_initializer = GlorotUniform();
  Initializer bias_initializer = Zeros();
  Regularizer depthwise_regularizer = {};
  Regularizer bias_regularizer = {};
  std::string name = "";
};

// Convolves each channel separately, into depth_multiplier new ones. Variables: kernel (kh, kw, 1,
// C * multiplier), bias (C * multiplier). Initialisers see the kernel as (kh, kw, C, multiplier),
// as in Keras.
struct DepthwiseConv2D : Layer {
  explicit DepthwiseConv2D(DepthwiseConv2DOptions options = {});
  explicit DepthwiseConv2D(Pair kernel_size, DepthwiseConv2DOptions options = {});
};

}  // namespace lockstep
