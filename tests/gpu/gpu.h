// The GPU that these tests run on. Without one they skip and say why.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/device/cuda/runtime.h"
#include "lockstep/kernels/kernel.h"

namespace lockstep {

inline Device& gpu() {
  static const std::unique_ptr<Device> device = make_cuda_device("cuda:0");
  return *device;
}

// A kernel whose outputs are filled with NaN before it runs.
class FilledKernel final : public Kernel {
 public:
  FilledKernel(const KernelCall& call, std::unique_ptr<Kernel> kernel)
      : kernel_(std::move(kernel)) {
    for (const ValueId id : call.node.outputs) bytes_.push_back(call.graph.bytes(id));
  }
  void bind(const Binding& binding) override {
    outputs_ = binding.outputs;
    kernel_->bind(binding);
  }
  void run(Stream& stream) override {
    for (std::size_t i = 0; i < bytes_.size(); ++i) {
      check_cuda(cudaMemsetAsync(outputs_[i], 0xff, bytes_[i], cuda_stream(stream)), "filling");
    }
    kernel_->run(stream);
  }
  std::string explain(std::int64_t value) const override { return kernel_->explain(value); }

 private:
  std::unique_ptr<Kernel> kernel_;
  std::vector<std::size_t> bytes_;
  std::vector<std::byte*> outputs_;
};

// The file that keeps choices of algorithms from run to run: $LOCKSTEP_TEST_PLANS, or none.
// (scripts/sanitize-gpu sets it, because choosing takes minutes there.)
inline std::string kept_plans() {
  const char* path = std::getenv("LOCKSTEP_TEST_PLANS");
  return path == nullptr ? "" : path;
}

// With LOCKSTEP_TEST_FILLED, the ops that libraries compute are FilledKernels: initcheck does not
// see writes by the GPU's tensor memory accelerator, which the libraries use, but it sees the fill.
inline KernelLibrary kernels_of_tests(const CudaKernelOptions& options) {
  KernelLibrary library = make_cuda_kernels(gpu(), options);
  if (std::getenv("LOCKSTEP_TEST_FILLED") == nullptr) return library;
  for (const Op op : {Op::MatMul, Op::Conv2D, Op::Conv2DGradInput, Op::Conv2DGradFilter}) {
    library.wrap(op, [](const KernelCall& call, std::unique_ptr<Kernel> kernel) {
      return std::make_unique<FilledKernel>(call, std::move(kernel));
    });
  }
  return library;
}

inline const KernelLibrary& gpu_kernels() {
  static const KernelLibrary library =
      kernels_of_tests({.allow_tf32 = false, .plan_cache = kept_plans()});
  return library;
}

inline const KernelLibrary& gpu_kernels_in_tf32() {
  static const KernelLibrary library =
      kernels_of_tests({.allow_tf32 = true, .plan_cache = kept_plans()});
  return library;
}

}  // namespace lockstep

#define LOCKSTEP_NEEDS_GPU()                                        \
  do {                                                              \
    const auto inventory = lockstep::find_gpus();                   \
    if (inventory.gpus.empty()) GTEST_SKIP() << inventory.why_none; \
  } while (false)
