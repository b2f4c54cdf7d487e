// Copies of a few bytes by a kernel. In a recorded step that takes 2 µs, where a copy engine takes
// 8: a step of a small model is not much longer.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

namespace lockstep {

inline constexpr std::size_t kMostSmallCopy = 1024;  // bytes

// Whether the GPU that is entered reaches both places itself: its own memory, or pinned memory.
bool can_copy_by_kernel(const std::byte* to, const std::byte* from);

void copy_by_kernel(std::byte* to, const std::byte* from, std::size_t bytes, cudaStream_t stream);

}  // namespace lockstep
