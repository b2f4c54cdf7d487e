// Copies by a kernel, where a copy engine would be worse.
//
// A few bytes in a recorded step: they take 2 µs, an engine 8, and a step of a small model is not
// much longer. Many bytes within a GPU's memory: an engine does what it was told in the order in
// which it was told, whoever told it, and takes large copies. Of replicas that share a GPU, one's
// copy for its next step would wait there for its step at work, that step for the sums of another
// replica, and that one's copy for the engine: for ever.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>

#include "lockstep/device/device.h"

namespace lockstep {

inline constexpr std::size_t kMostSmallCopy = 1024;  // bytes

// Whether the GPU that is entered reaches both places itself: its own memory, or pinned memory.
bool can_copy_by_kernel(const std::byte* to, const std::byte* from);
// Whether both are its own memory.
bool lie_within_gpu(const std::byte* to, const std::byte* from);

void copy_by_kernel(std::byte* to, const std::byte* from, std::size_t bytes, cudaStream_t stream);

inline constexpr std::size_t kMostOfSeveral = std::size_t{1} << 16;  // bytes of each
// Small copies in as few launches as can be: a block copies one.
void copy_several_by_kernel(std::span<const Stream::Copy> copies, cudaStream_t stream);

}  // namespace lockstep
