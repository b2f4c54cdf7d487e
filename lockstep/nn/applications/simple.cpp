// The small networks that CPU benchmarks and first examples train.
#include "lockstep/nn/applications/applications.h"
#include "lockstep/nn/applications/pixels.h"
#include "lockstep/nn/layers.h"

namespace lockstep::applications {

std::shared_ptr<Network> mlp(MLPOptions options) {
  const Symbol input = Input({.shape = options.input_shape, .dtype = options.dtype});
  Symbol x = Flatten()(scaled_pixels(input));
  for (std::int64_t units : options.hidden) {
    x = Dense({.units = units, .activation = "relu"})(x);
  }
  return Network::functional({input}, {Dense({.units = options.classes})(x)}, options.name);
}

std::shared_ptr<Network> lenet(LeNetOptions options) {
  const Symbol input = Input({.shape = options.input_shape, .dtype = options.dtype});
  Symbol x = scaled_pixels(input);
  for (std::int64_t filters : {32, 64}) {
    x = Conv2D({.filters = filters, .kernel_size = 3, .padding = "same", .activation = "relu"})(x);
    x = MaxPooling2D({.pool_size = 2})(x);
  }
  x = Dense({.units = 128, .activation = "relu"})(Flatten()(x));
  return Network::functional({input}, {Dense({.units = options.classes})(x)}, options.name);
}

}  // namespace lockstep::applications
