// How long batch norm's sweep for statistics takes: what a convolution that has them at hand
// spares.
#pragma once

#include <optional>

#include "lockstep/kernels/cuda/cuda.h"

namespace lockstep {

// In milliseconds, for a value of that shape; nothing where there is too little memory.
std::optional<float> measure_statistics(CudaContext& context, DType dtype, const Shape& shape);

}  // namespace lockstep
