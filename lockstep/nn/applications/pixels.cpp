#include "lockstep/nn/applications/pixels.h"

#include "lockstep/nn/layers/rescaling.h"

namespace lockstep::applications {

Symbol scaled_pixels(const Symbol& input) {
  return is_floating(input.type().dtype) ? input : Rescaling({.scale = 1.0 / 255})(input);
}

}  // namespace lockstep::applications
