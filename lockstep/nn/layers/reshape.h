// Layers that only move elements about.
#pragma once

#include <string>

#include "lockstep/nn/layer.h"
#include "lockstep/nn/layers/window.h"

namespace lockstep {

struct FlattenOptions {
  std::string name = "";
};
// (N, …) → (N, product of the rest).
struct Flatten : Layer {
  explicit Flatten(FlattenOptions options = {});
};

struct ReshapeOptions {
  Ints shape = {};  // without the batch; one extent may be -1: what is left
  std::string name = "";
};
struct Reshape : Layer {
  explicit Reshape(ReshapeOptions options);
};

struct ZeroPadding2DOptions {
  PaddingOption padding = 1;
  std::string name = "";
};
struct ZeroPadding2D : Layer {
  explicit ZeroPadding2D(ZeroPadding2DOptions options = {});
};

}  // namespace lockstep
