// What a user may choose about kernels on GPUs.
#pragma once

#include <string>

namespace lockstep {

struct CudaKernelOptions {
  // f32 products and convolutions on tensor cores, with ten bits of mantissa, as other frameworks
  // compute them by default; false: strict f32.
  bool allow_tf32 = true;
  // A file that keeps which algorithms of cuDNN and cuBLASLt were the fastest, by GPU and problem,
  // so that later runs start sooner and take the same ones. Empty: they are measured in every run.
  std::string plan_cache = {};
};

}  // namespace lockstep
