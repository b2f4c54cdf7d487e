// CUDA devices, without CUDA's headers: which GPUs there are, or why there are none, and a Device
// for each. In a build without CUDA, none.cpp replaces this folder.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/device/device.h"

namespace lockstep {

// A GPU of this machine.
struct Gpu {
  int index = 0;
  std::string model;  // "NVIDIA H200"
  int major = 0;      // compute capability
  int minor = 0;
  int multiprocessors = 0;
  std::size_t memory_bytes = 0;
};

struct GpuInventory {
  std::vector<Gpu> gpus;
  std::string why_none;  // why there is none, and what to do about it
};

// The GPUs of this machine. Never throws; the first call may take a moment, because it starts the
// driver.
GpuInventory find_gpus();

// The version of the runtime that Lockstep was built with, "13.0"; empty in a build without CUDA.
std::string cuda_version();

// "cuda:1" is the second GPU; "cuda:1/0", "cuda:1/1" are logical devices that share it.
struct CudaName {
  int gpu = 0;
  int part = -1;  // -1: the whole GPU
};
bool names_cuda(std::string_view name);
CudaName parse_cuda_name(std::string_view name);  // UsageError if it is not one

// The device with this name. UsageError, listing the GPUs that exist, if there is no such GPU.
std::unique_ptr<Device> make_cuda_device(std::string_view name);

// For CUDA devices: the GPU, and how much of its memory is free at the moment.
Gpu gpu_of(const Device& device);
std::size_t free_gpu_bytes(const Device& device);

}  // namespace lockstep
