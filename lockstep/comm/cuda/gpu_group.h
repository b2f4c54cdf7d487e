// Groups of replicas on GPUs: over NCCL if each has its own GPU, through the GPU's memory if they
// share one. If CMake finds no CUDA toolkit, none.cpp replaces this folder.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep {

// One rank per device, in their order. UsageError if only some devices share a GPU, or if NCCL is
// needed and cannot be loaded.
std::unique_ptr<Group> make_gpu_group(const std::vector<Device*>& devices,
                                      std::chrono::milliseconds timeout);

struct GpuWorkersOptions {
  std::vector<int> ranks_of_worker = {};  // the first ones belong to worker 0
  int worker = 0;                         // this process
  // How long a rank waits for the others.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // A group in host memory, with one rank for each worker.
  std::unique_ptr<Group> workers = {};
};

// The ranks of several workers, those of this one on these devices, each with its own GPU, over one
// NCCL communicator. It connects when it is asked to, so that a worker that fails meanwhile can be
// told to it by abort().
std::unique_ptr<Group> make_gpu_workers_group(const std::vector<Device*>& devices,
                                              GpuWorkersOptions options);

}  // namespace lockstep
