// Kernels for convolutions that pool their result, and for filters' gradients that undo the pooling
// first (ops/conv.h): two kernels of a library in turn, on so few images at a time that what lies
// between them stays in a core's cache.
#pragma once

#include "lockstep/kernels/kernel.h"

namespace lockstep {

// Whether an image of a convolution's result is small enough for that.
bool fits_between(const Shape& result);

// By the kernels of cpu_kernels().
void add_pooled_conv(KernelLibrary& library);
// By the reference's, on all images at once.
void add_reference_pooled_conv(KernelLibrary& library);

}  // namespace lockstep
