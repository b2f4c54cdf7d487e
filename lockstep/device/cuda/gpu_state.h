// What workers must know about a GPU besides what it can do: which one it is, and whether this
// process can still use it. In a build without CUDA, none.cpp replaces this folder.
#pragma once

#include <string>

#include "lockstep/device/cuda/cuda_device.h"

namespace lockstep {

// No other GPU has it: "GPU-8a04…", as NVIDIA's tools show it; empty where the driver gives none.
std::string uuid_of(const Gpu& gpu);

// Whether a device can still be used: true for CPUs. After some errors, such as an access to memory
// that is not there, a process cannot use its GPUs any more: it has to end.
bool is_usable(const Device& device);

}  // namespace lockstep
