// The reference kernels: plain C++ for row-major values, one function per op family. Other kernels
// are checked against them, and a CPU device runs them if there is nothing faster.
#pragma once

#include "lockstep/kernels/kernel.h"

namespace lockstep {

// Every op that computes, for 16-bit floats, through the f32 reference kernels.
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
// Collectives on a rank that is alone: the values as they are. OwnSlice.
void add_reference_collective(KernelLibrary& library);
// Assign, Update and GlobalNorm.
void add_reference_update(KernelLibrary& library);
// RoundGradients.
void add_reference_error_feedback(KernelLibrary& library);
// Reorder.
void add_reference_layout(KernelLibrary& library);

}  // namespace lockstep
