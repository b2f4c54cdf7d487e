// Which GPUs the kernels were compiled for, and whether one of another kind can run them.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/device/cuda/cuda_device.h"

namespace lockstep {

// Why a GPU cannot run kernels that were compiled for `architectures`, and what to do; empty where
// it can. These are written as CMake has them, "80-real 90-real 90-virtual", with spaces between:
// machine code runs on GPUs of the same generation that are as new or newer, virtual code on all
// that are.
std::string why_no_code_for(const Gpu& gpu, std::string_view architectures);

}  // namespace lockstep
