// Rescaling: brings pixels to the range that a network expects.
#pragma once

#include <string>

#include "lockstep/nn/layer.h"

namespace lockstep {

struct RescalingOptions {
  double scale = 1.0;
  double offset = 0.0;
  std::string name = "";
};

// x * scale + offset, in f32 if x holds integers.
struct Rescaling : Layer {
  explicit Rescaling(RescalingOptions options);
  explicit Rescaling(double scale, RescalingOptions options = {});  // Rescaling(1.0 / 255)
};

}  // namespace lockstep
