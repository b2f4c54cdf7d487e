// What the CUDA kernels share: the context of a GPU, kernels as functions of a binding and a
// stream, element types, launches.
//
// Rules for all of them: running allocates nothing, waits for nothing and can be recorded into a
// CUDA graph; sums have a fixed order (no atomics on floats), so that two runs give the same bits;
// empty values launch nothing; arithmetic and sums of 16-bit values are in f32; values are
// row-major, so images are (N, H, W, C).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/device/cuda/runtime.h"
#include "lockstep/kernels/kernel.h"

namespace lockstep {

struct CublasLt;  // cublaslt.h
struct Cudnn;     // cudnn.h
class Nvrtc;      // nvrtc.h
class PlanCache;  // plan_cache.h

// One GPU and its library handles, created on first use.
class CudaContext final : public KernelContext {
 public:
  explicit CudaContext(Device& device);
  ~CudaContext() override;

  Device& device() const { return device_; }
  int multiprocessors() const { return gpu_.multiprocessors; }
  const Gpu& gpu() const { return gpu_; }
  // The libraries, loaded on first use; UsageError, with what to do, if one is missing. Each call
  // makes the GPU the calling thread's current one.
  CublasLt& cublaslt();
  Cudnn& cudnn();
  Nvrtc& nvrtc();
  // The libraries' algorithms chosen so far, in this run and in earlier ones.
  PlanCache& plans();

  // Each distinct remark is kept once.
  void remark(const std::string& text);
  std::vector<std::string> remarks() const override;

  // To be set before the first kernel is created.
  bool allow_tf32 = true;            // f32 products with ten bits of mantissa, on tensor cores
  bool measure = true;               // choose the libraries' algorithms by measuring them
  std::string plan_cache_path = {};  // file that keeps choices for later runs; empty: none

 private:
  Device& device_;
  Gpu gpu_;
  mutable std::mutex mutex_;  // guards the members below
  std::shared_ptr<CublasLt> cublaslt_;
  std::shared_ptr<Cudnn> cudnn_;
  std::shared_ptr<Nvrtc> nvrtc_;
  std::shared_ptr<PlanCache> plans_;
  std::vector<std::string> remarks_;
};

inline CudaContext& cuda_context(const KernelCall& call) {
  return static_cast<CudaContext&>(*call.context);
}

// A stateless kernel: a function of its binding and the stream.
using CudaFunction = std::function<void(const Binding&, cudaStream_t)>;
std::unique_ptr<Kernel> make_cuda_kernel(CudaFunction function);

// Calls f with a zero of the device type of a dtype.
template <class F>
decltype(auto) cuda_dispatch(DType dtype, F&& f) {
  switch (dtype) {
    case DType::F32:
      return f(float{});
    case DType::F16:
      return f(__half{});
    case DType::BF16:
      return f(__nv_bfloat16{});
    case DType::F64:
      return f(double{});
    case DType::I32:
      return f(std::int32_t{});
    case DType::I64:
      return f(std::int64_t{});
    case DType::U8:
      return f(std::uint8_t{});
    case DType::Bool:
      return f(bool{});
  }
  fail<InternalError>("[cuda] unknown dtype");
}

// The same for the floating types that networks compute in: f32, f16, bf16.
template <class F>
decltype(auto) cuda_dispatch_float(DType dtype, F&& f) {
  switch (dtype) {
    case DType::F32:
      return f(float{});
    case DType::F16:
      return f(__half{});
    case DType::BF16:
      return f(__nv_bfloat16{});
    default:
      fail<UsageError>("[cuda] there is no kernel for {}", name_of(dtype));
  }
}

// Whether every floating input and output of a node is one of f32, f16 and bf16.
bool has_cuda_floats(const KernelCall& call);

// The number of blocks of `threads` that cover n elements, at most `most`.
inline unsigned cuda_blocks(std::int64_t n, int threads, std::int64_t most = 1 << 20) {
  return static_cast<unsigned>(
      std::max<std::int64_t>(1, std::min((n + threads - 1) / threads, most)));
}

inline void check_launch(const char* kernel) {
  check_cuda(cudaGetLastError(), kernel);
}

// The families, each in its own file.
void add_cuda_elementwise(KernelLibrary& library);  // elementwise.cu
void add_cuda_pointwise(KernelLibrary& library);    // pointwise.cpp
void add_cuda_reduce(KernelLibrary& library);       // reduce.cu
void add_cuda_shape(KernelLibrary& library);        // shape.cu
void add_cuda_random(KernelLibrary& library);       // random.cu
void add_cuda_state(KernelLibrary& library);        // state.cu
void add_cuda_norm(KernelLibrary& library);         // batch_norm.cu
void add_cuda_layer_norm(KernelLibrary& library);   // layer_norm.cu
void add_cuda_softmax(KernelLibrary& library);      // softmax.cu
void add_cuda_pool(KernelLibrary& library);         // pool.cu
void add_cuda_update(KernelLibrary& library);       // update.cu
void add_cuda_rounding(KernelLibrary& library);     // round_gradients.cu
void add_cuda_matmul(KernelLibrary& library);       // matmul.cpp
void add_cuda_conv(KernelLibrary& library);         // conv.cpp

}  // namespace lockstep
