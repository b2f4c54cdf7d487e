// The time of batch norm's pass for statistics, which a convolution saves if it computes them.
#pragma once

#include <optional>

#include "lockstep/kernels/cuda/cuda.h"

namespace lockstep {

// In milliseconds, for a value of that shape; nothing if it cannot be measured (too little memory,
// or channels that do not fill whole vectors).
std::optional<float> measure_statistics(CudaContext& context, DType dtype, const Shape& shape);

}  // namespace lockstep
