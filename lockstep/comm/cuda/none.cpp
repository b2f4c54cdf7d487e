// Replaces this folder if CMake finds no CUDA toolkit.
#include "lockstep/base/error.h"
#include "lockstep/comm/cuda/gpu_group.h"

namespace lockstep {

std::unique_ptr<Group> make_gpu_group(const std::vector<Device*>& devices,
                                      std::chrono::milliseconds /*timeout*/) {
  fail<UsageError>("[comm] {}: this Lockstep was built without CUDA", devices.front()->name());
}

std::unique_ptr<Group> make_gpu_workers_group(const std::vector<Device*>& devices,
                                              GpuWorkersOptions /*options*/) {
  fail<UsageError>("[comm] {}: this Lockstep was built without CUDA", devices.front()->name());
}

}  // namespace lockstep
