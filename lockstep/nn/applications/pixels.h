// How all applications treat integer inputs.
#pragma once

#include "lockstep/nn/layer.h"

namespace lockstep::applications {

// Pixels 0 … 255 as floats in [0, 1]; floats unchanged.
Symbol scaled_pixels(const Symbol& input);

}  // namespace lockstep::applications
