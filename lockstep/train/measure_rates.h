// measure_rates: how fast a device multiplies matrices and reads memory, with the kernels that a
// training step would use; in a fraction of a second, whatever the model.
#pragma once

#include <optional>

#include "lockstep/base/dtype.h"
#include "lockstep/explain/device_rates.h"
#include "lockstep/runtime/world.h"

namespace lockstep {

// Of the first local rank; `precision` is the 16-bit type, in mixed precision.
DeviceRates measure_rates(World& world, std::optional<DType> precision = {});

}  // namespace lockstep
