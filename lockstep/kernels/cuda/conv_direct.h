// Convolutions by their definition: for what the library does not do. Slow where there is much to
// compute, right for every shape, in the reference's order of terms up to grouping, and
// deterministic.
#pragma once

#include <cuda_runtime.h>

#include "lockstep/kernels/cuda/conv_problem.h"

namespace lockstep {

// By the problem's way: y of (x, filter), dx of (dy, filter), or dw of (x, dy).
void convolve_directly(const ConvProblem& problem, const void* first, const void* second,
                       void* result, cudaStream_t stream);

}  // namespace lockstep
