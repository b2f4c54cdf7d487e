// Groups of replicas on GPUs: over NCCL if each has its own GPU, through the GPU's memory if they
// share one. If CMake finds no CUDA toolkit, none.cpp replaces this folder.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep {

// One rank per device, in their order. UsageError if only some devices share a GPU, or if NCCL is
// needed and cannot be loaded.
std::unique_ptr<Group> make_gpu_group(const std::vector<Device*>& devices,
                                      std::chrono::milliseconds timeout);

}  // namespace lockstep
