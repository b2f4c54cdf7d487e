// Parts of add_cuda_shape, each in its own file.
#pragma once

#include "lockstep/kernels/kernel.h"

namespace lockstep {

void add_cuda_collective(KernelLibrary& library);    // collective.cu: those of a rank alone
void add_cuda_transpose(KernelLibrary& library);     // transpose.cu: Transpose, Reorder
void add_cuda_concat_split(KernelLibrary& library);  // concat_split.cu: Concat, Split
void add_cuda_gather(KernelLibrary& library);        // gather.cu
void add_cuda_gather_grad(KernelLibrary& library);   // gather_grad.cu

}  // namespace lockstep
