// Layers with several inputs: Add()({a, b}).
#pragma once

#include <string>

#include "lockstep/nn/layer.h"

namespace lockstep {

struct MergeOptions {
  std::string name = "";
};
// Elementwise over inputs that broadcast to one shape.
struct Add : Layer {
  explicit Add(MergeOptions options = {});
};
struct Multiply : Layer {
  explicit Multiply(MergeOptions options = {});
};

struct ConcatenateOptions {
  int axis = -1;
  std::string name = "";
};
struct Concatenate : Layer {
  explicit Concatenate(ConcatenateOptions options = {});
  explicit Concatenate(int axis, ConcatenateOptions options = {});
};

}  // namespace lockstep
