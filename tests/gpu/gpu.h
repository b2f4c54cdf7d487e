// The GPU that these tests run on. Where there is none they skip, and say why.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/kernels/kernel.h"

namespace lockstep {

inline Device& gpu() {
  static const std::unique_ptr<Device> device = make_cuda_device("cuda:0");
  return *device;
}

inline const KernelLibrary& gpu_kernels() {
  static const KernelLibrary library = make_cuda_kernels(gpu());
  return library;
}

inline const KernelLibrary& gpu_kernels_in_tf32() {
  static const KernelLibrary library = make_cuda_kernels(gpu(), {.allow_tf32 = true});
  return library;
}

}  // namespace lockstep

#define LOCKSTEP_NEEDS_GPU()                                        \
  do {                                                              \
    const auto inventory = lockstep::find_gpus();                   \
    if (inventory.gpus.empty()) GTEST_SKIP() << inventory.why_none; \
  } while (false)
