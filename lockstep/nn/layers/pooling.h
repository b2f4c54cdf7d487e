// Pooling over (N, H, W, C) images.
#pragma once

#include <optional>
#include <string>

#include "lockstep/nn/layer.h"
#include "lockstep/nn/layers/window.h"

namespace lockstep {

struct Pool2DOptions {
  Pair pool = 2;
  std::optional<Pair> stride = {};  // the pool, unless given
  PaddingOption padding = "valid";
  std::string name = "";
};

struct MaxPool2D : Layer {
  explicit MaxPool2D(Pool2DOptions options = {});
};
// Padding does not count.
struct AveragePooling2D : Layer {
  explicit AveragePooling2D(Pool2DOptions options = {});
};

struct GlobalPool2DOptions {
  bool keepdims = false;  // (N, 1, 1, C)
  std::string name = "";
};
// (N, H, W, C) → (N, C).
struct GlobalAveragePooling2D : Layer {
  explicit GlobalAveragePooling2D(GlobalPool2DOptions options = {});
};

}  // namespace lockstep
