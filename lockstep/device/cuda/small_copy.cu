#include <cstdint>

#include "lockstep/device/cuda/runtime.h"
#include "lockstep/device/cuda/small_copy.h"

namespace lockstep {
namespace {

constexpr int kThreads = 256;

// In words where all of it lies on their boundaries.
__global__ void __launch_bounds__(kThreads)
    small_copy(std::byte* to, const std::byte* from, int bytes, bool in_words) {
  const int thread = static_cast<int>(threadIdx.x);
  if (in_words) {
    for (int i = thread; i < bytes / 4; i += kThreads) {
      reinterpret_cast<std::uint32_t*>(to)[i] = reinterpret_cast<const std::uint32_t*>(from)[i];
    }
  } else {
    for (int i = thread; i < bytes; i += kThreads) to[i] = from[i];
  }
}

bool is_reached(const std::byte* place, int gpu) {
  cudaPointerAttributes attributes = {};
  if (cudaPointerGetAttributes(&attributes, place) != cudaSuccess) {
    cudaGetLastError();  // memory that CUDA does not know
    return false;
  }
  if (attributes.devicePointer != place) return false;
  return attributes.type == cudaMemoryTypeHost ||
         (attributes.type == cudaMemoryTypeDevice && attributes.device == gpu);
}

}  // namespace

bool can_copy_by_kernel(const std::byte* to, const std::byte* from) {
  int gpu = 0;
  check_cuda(cudaGetDevice(&gpu), "asking which GPU is entered");
  return is_reached(to, gpu) && is_reached(from, gpu);
}

void copy_by_kernel(std::byte* to, const std::byte* from, std::size_t bytes, cudaStream_t stream) {
  const auto places = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  const bool in_words = (places | bytes) % 4 == 0;
  small_copy<<<1, kThreads, 0, stream>>>(to, from, static_cast<int>(bytes), in_words);
  check_cuda(cudaGetLastError(), "copying a few bytes");
}

}  // namespace lockstep
