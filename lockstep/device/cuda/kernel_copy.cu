#include "lockstep/device/cuda/kernel_copy.h"

#include <algorithm>
#include <cstdint>

#include "lockstep/device/cuda/runtime.h"

namespace lockstep {
namespace {

constexpr int kThreads = 256;
constexpr std::uint64_t kLoads = 4;          // words in flight per thread
constexpr std::uint64_t kMostBlocks = 8192;  // with more words, each thread loops

template <class Word>
__global__ void __launch_bounds__(kThreads)
    copy_words(Word* __restrict__ to, const Word* __restrict__ from, std::uint64_t words) {
  const std::uint64_t stride = std::uint64_t{gridDim.x} * (kThreads * kLoads);
  for (std::uint64_t first = std::uint64_t{blockIdx.x} * (kThreads * kLoads) + threadIdx.x;
       first < words; first += stride) {
    Word loaded[kLoads];
#pragma unroll
    for (std::uint64_t load = 0; load < kLoads; ++load) {
      const std::uint64_t at = first + load * kThreads;
      if (at < words) loaded[load] = from[at];
    }
#pragma unroll
    for (std::uint64_t load = 0; load < kLoads; ++load) {
      const std::uint64_t at = first + load * kThreads;
      if (at < words) to[at] = loaded[load];
    }
  }
}

// The arguments of one launch of copy_several.
struct CopyTable {
  static constexpr std::size_t kMost = 160;
  Stream::Copy copies[kMost];
};
static_assert(sizeof(CopyTable) <= 4096, "kernel arguments have at most 4096 bytes");

template <class Word>
__device__ void copy_by_block(const Stream::Copy& copy) {
  const auto* const from = reinterpret_cast<const Word*>(copy.from);
  auto* const to = reinterpret_cast<Word*>(copy.to);
  for (std::size_t at = threadIdx.x; at < copy.bytes / sizeof(Word); at += kThreads) {
    to[at] = from[at];
  }
}

__global__ void __launch_bounds__(kThreads) copy_several(const __grid_constant__ CopyTable table) {
  const Stream::Copy& copy = table.copies[blockIdx.x];
  const auto places = reinterpret_cast<std::uintptr_t>(copy.to) |
                      reinterpret_cast<std::uintptr_t>(copy.from) | copy.bytes;
  if (places % 4 == 0) {
    copy_by_block<std::uint32_t>(copy);
  } else {
    copy_by_block<std::uint8_t>(copy);
  }
}

template <class Word>
void launch(std::byte* to, const std::byte* from, std::size_t bytes, cudaStream_t stream) {
  const std::uint64_t words = bytes / sizeof(Word);
  const std::uint64_t blocks = (words + kThreads * kLoads - 1) / (kThreads * kLoads);
  copy_words<<<static_cast<unsigned>(std::min(blocks, kMostBlocks)), kThreads, 0, stream>>>(
      reinterpret_cast<Word*>(to), reinterpret_cast<const Word*>(from), words);
  check_cuda(cudaGetLastError(), "copying with a kernel");
}

// The kind of memory at an address; unregistered if the GPU does not reach it at this same address.
cudaMemoryType kind_of(const std::byte* place, int gpu) {
  cudaPointerAttributes attributes = {};
  if (cudaPointerGetAttributes(&attributes, place) != cudaSuccess) {
    cudaGetLastError();  // memory that CUDA does not know
    return cudaMemoryTypeUnregistered;
  }
  const bool elsewhere = attributes.type == cudaMemoryTypeDevice && attributes.device != gpu;
  return attributes.devicePointer != place || elsewhere ? cudaMemoryTypeUnregistered
                                                        : attributes.type;
}

template <class Accepts>
bool both(const std::byte* to, const std::byte* from, Accepts accepts) {
  int gpu = 0;
  check_cuda(cudaGetDevice(&gpu), "querying the current GPU");
  return accepts(kind_of(to, gpu)) && accepts(kind_of(from, gpu));
}

}  // namespace

bool can_copy_by_kernel(const std::byte* to, const std::byte* from) {
  return both(to, from, [](cudaMemoryType kind) {
    return kind == cudaMemoryTypeHost || kind == cudaMemoryTypeDevice;
  });
}

bool lie_within_gpu(const std::byte* to, const std::byte* from) {
  return both(to, from, [](cudaMemoryType kind) { return kind == cudaMemoryTypeDevice; });
}

void copy_several_by_kernel(std::span<const Stream::Copy> copies, cudaStream_t stream) {
  for (std::size_t done = 0; done < copies.size(); done += CopyTable::kMost) {
    const auto some = copies.subspan(done, std::min(CopyTable::kMost, copies.size() - done));
    CopyTable table;
    std::ranges::copy(some, table.copies);
    copy_several<<<static_cast<unsigned>(some.size()), kThreads, 0, stream>>>(table);
    check_cuda(cudaGetLastError(), "copying with a kernel");
  }
}

void copy_by_kernel(std::byte* to, const std::byte* from, std::size_t bytes, cudaStream_t stream) {
  const auto places =
      reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from) | bytes;
  if (places % 16 == 0) {
    launch<uint4>(to, from, bytes, stream);
  } else if (places % 4 == 0) {
    launch<std::uint32_t>(to, from, bytes, stream);
  } else {
    launch<std::uint8_t>(to, from, bytes, stream);
  }
}

}  // namespace lockstep
