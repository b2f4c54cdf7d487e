// Convolutions by their definition, for what cuDNN cannot compute: slow for large problems, correct
// for every shape, deterministic. Terms are added in the reference's order up to grouping.
#pragma once

#include <cuda_runtime.h>

#include "lockstep/kernels/cuda/conv/conv_problem.h"

namespace lockstep {

// Computes, depending on problem.way, y from (x, filter), dx from (dy, filter) or dw from (x, dy).
void convolve_directly(const ConvProblem& problem, const void* first, const void* second,
                       void* result, cudaStream_t stream);

}  // namespace lockstep
