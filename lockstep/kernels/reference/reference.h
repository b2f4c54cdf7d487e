// The reference kernels: plain C++ for row-major values, one function an op family. They are what
// other kernels are checked against, and what a CPU device runs where nothing faster is there.
#pragma once

#include "lockstep/kernels/kernel.h"

namespace lockstep {

// Every op that computes, in 16-bit floats, through the reference for f32.
void add_reference_half(KernelLibrary& library);
void add_reference_elementwise(KernelLibrary& library);
void add_reference_activation(KernelLibrary& library);
// Pointwise and PointwiseAssign.
void add_reference_pointwise(KernelLibrary& library);
void add_reference_reduce(KernelLibrary& library);
void add_reference_shape(KernelLibrary& library);
void add_reference_matmul(KernelLibrary& library);
void add_reference_conv(KernelLibrary& library);
void add_reference_pool(KernelLibrary& library);
void add_reference_norm(KernelLibrary& library);
void add_reference_random(KernelLibrary& library);
void add_reference_softmax(KernelLibrary& library);
// AllReduce on a replica that is alone: the values as they are.
void add_reference_collective(KernelLibrary& library);
// Assign, Update and GlobalNorm.
void add_reference_update(KernelLibrary& library);
// Reorder.
void add_reference_layout(KernelLibrary& library);

}  // namespace lockstep
