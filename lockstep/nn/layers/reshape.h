// Layers that only rearrange elements.
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
  Ints target_shape = {};  // without the batch; one extent may be -1 and is inferred
  std::string name = "";
};
struct Reshape : Layer {
  explicit Reshape(ReshapeOptions options);
  explicit Reshape(Extents target_shape, ReshapeOptions options = {});  // Reshape({28, 28, 1})
};

struct ZeroPadding2DOptions {
  ByName by_name = {};
  PaddingOption padding = 1;
  std::string name = "";
};
struct ZeroPadding2D : Layer {
  explicit ZeroPadding2D(ZeroPadding2DOptions options = {});
  // ZeroPadding2D(1), ZeroPadding2D({{1, 0}, {2, 0}}).
  explicit ZeroPadding2D(PaddingOption padding, ZeroPadding2DOptions options = {});
};

}  // namespace lockstep
