// Pooling over (N, H, W, C) images.
#pragma once

#include <optional>
#include <string>

#include "lockstep/nn/layer.h"
#include "lockstep/nn/layers/window.h"

namespace lockstep {

struct Pooling2DOptions {
  ByName by_name = {};
  Pair pool_size = 2;
  std::optional<Pair> strides = {};  // default: pool_size
  PaddingOption padding = "valid";
  std::string name = "";
};

// MaxPooling2D(), MaxPooling2D(2), MaxPooling2D({3, 3}, {.strides = 2}).
struct MaxPooling2D : Layer {
  explicit MaxPooling2D(Pooling2DOptions options = {});
  explicit MaxPooling2D(Pair pool_size, Pooling2DOptions options = {});
};
// Padding does not count.
struct AveragePooling2D : Layer {
  explicit AveragePooling2D(Pooling2DOptions options = {});
  explicit AveragePooling2D(Pair pool_size, Pooling2DOptions options = {});
};

struct GlobalPooling2DOptions {
  bool keepdims = false;  // (N, 1, 1, C)
  std::string name = "";
};
// (N, H, W, C) → (N, C).
struct GlobalAveragePooling2D : Layer {
  explicit GlobalAveragePooling2D(GlobalPooling2DOptions options = {});
};
struct GlobalMaxPooling2D : Layer {
  explicit GlobalMaxPooling2D(GlobalPooling2DOptions options = {});
};

// Keras's shorter names.
using MaxPool2D = MaxPooling2D;
using AvgPool2D = AveragePooling2D;
using GlobalAvgPool2D = GlobalAveragePooling2D;
using GlobalMaxPool2D = GlobalMaxPooling2D;

}  // namespace lockstep
