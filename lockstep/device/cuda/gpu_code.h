// Whether a GPU can run kernels that were compiled for other architectures.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/device/cuda/cuda_device.h"

namespace lockstep {

// Why a GPU cannot run kernels that were compiled for `architectures`, and what to do; empty if it
// can. Architectures are spelled as in CMake and separated by spaces, "80-real 90-real 90-virtual":
// machine code runs on GPUs of the same generation that are as new or newer, virtual code on all
// GPUs that are.
std::string why_no_code_for(const Gpu& gpu, std::string_view architectures);

}  // namespace lockstep
