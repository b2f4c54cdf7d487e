// Replaces this folder if CMake found no CUDA toolkit.
#include "lockstep/base/error.h"
#include "lockstep/kernels/kernel.h"

namespace lockstep {

KernelLibrary make_cuda_kernels(Device& device, const CudaKernelOptions&) {
  fail<UsageError>("[kernels] {}: this Lockstep was built without CUDA", device.name());
}

}  // namespace lockstep
