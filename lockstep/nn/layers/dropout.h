// Dropout.
#pragma once

#include <string>

#include "lockstep/nn/layer.h"

namespace lockstep {

struct DropoutLayerOptions {
  double rate = 0.5;
  std::string name = "";
};

// In training, zeroes elements with probability rate and scales the rest by 1 / (1 - rate); draws
// under the layer's path. Otherwise gives x itself.
struct Dropout : Layer {
  explicit Dropout(DropoutLayerOptions options = {});
  explicit Dropout(double rate, DropoutLayerOptions options = {});  // Dropout(0.2)
};

}  // namespace lockstep
