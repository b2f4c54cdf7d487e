// Kernels for convolutions that pool their result, and for filter gradients that undo the pooling
// first (ops/conv.h). They run two kernels of a library in turn, on so few images at a time that
// the intermediate image stays in a core's cache.
#pragma once

#include "lockstep/kernels/kernel.h"

namespace lockstep {

// Whether one image of a convolution's result is small enough for that.
bool fits_between(const Shape& result);

// Uses cpu_kernels().
void add_pooled_conv(KernelLibrary& library);
// Uses reference_kernels(), on all images at once.
void add_reference_pooled_conv(KernelLibrary& library);

}  // namespace lockstep
