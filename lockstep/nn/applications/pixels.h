// What all applications do with an input of integers.
#pragma once

#include "lockstep/nn/layer.h"

namespace lockstep::applications {

// Pixels 0 … 255 as floats in [0, 1]; floats as they are.
Symbol scaled_pixels(const Symbol& input);

}  // namespace lockstep::applications
