// What a product that accumulates begins with.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "lockstep/base/dtype.h"

namespace lockstep {

// y = *added != 0 ? from : 0, for `count` elements; `from` may be y itself. The memory of y is
// touched only where it changes.
void begin_accumulation(DType dtype, const float* added, const std::byte* from, std::byte* y,
                        std::int64_t count, cudaStream_t stream);

}  // namespace lockstep
