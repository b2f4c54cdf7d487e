// Dropout.
#pragma once

#include <string>

#include "lockstep/nn/layer.h"

namespace lockstep {

struct DropoutLayerOptions {
  double rate = 0.5;
  std::string name = "";
};

// In training, zeroes elements with probability rate and scales the rest by 1 / (1 - rate); the
// layer's path selects the random stream. Otherwise returns x itself.
struct Dropout : Layer {
  explicit Dropout(DropoutLayerOptions options = {});
  explicit Dropout(double rate, DropoutLayerOptions options = {});  // Dropout(0.2)
};

}  // namespace lockstep
