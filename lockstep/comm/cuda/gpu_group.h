// Groups of replicas on GPUs: over NCCL where each has a GPU of its own, through the GPU's memory
// where they share one. Where CUDA was not found at configuring, none.cpp stands for this folder.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep {

// A rank for each device, in their order. UsageError where some devices share a GPU and others do
// not, or where NCCL is needed and cannot be loaded.
std::unique_ptr<Group> make_gpu_group(const std::vector<Device*>& devices,
                                      std::chrono::milliseconds timeout);

}  // namespace lockstep
