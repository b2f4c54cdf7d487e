#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/matmul/matmul_begin.h"

namespace lockstep {
namespace {

constexpr int kBeginThreads = 256;
constexpr std::int64_t kMostBeginBlocks = 1024;

template <class T>
__global__ void begin_with(const float* added, const T* from, T* y, std::int64_t count) {
  const bool adds = *added != 0.0f;
  if (adds && from == y) return;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += step) {
    y[i] = adds ? from[i] : T(0.0f);
  }
}

}  // namespace

void begin_accumulation(DType dtype, const float* added, const std::byte* from, std::byte* y,
                        std::int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  cuda_dispatch_float(dtype, [&](auto zero) {
    using T = decltype(zero);
    begin_with<T>
        <<<cuda_blocks(count, kBeginThreads, kMostBeginBlocks), kBeginThreads, 0, stream>>>(
            added, reinterpret_cast<const T*>(from), reinterpret_cast<T*>(y), count);
  });
  check_launch("matmul");
}

}  // namespace lockstep
