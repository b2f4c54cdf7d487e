// Copies with a kernel, where a copy engine would be worse.
//
// A few bytes in a recorded step: a kernel takes 2 µs, a copy engine 8, and a step of a small model
// is not much longer. Many bytes within a GPU's memory: the engine that runs large copies takes
// them in the order of issue, across all streams. If replicas share a GPU, the copy for one
// replica's next step would hold up the engine until its current step is done, that step would wait
// for a collective with another replica, and that replica's copy would wait for the engine: a
// deadlock.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <span>

#include "lockstep/device/device.h"

namespace lockstep {

inline constexpr std::size_t kMostSmallCopy = 1024;  // bytes

// Whether the current GPU reaches both addresses: its own memory, or pinned memory.
bool can_copy_by_kernel(const std::byte* to, const std::byte* from);
// Whether both are in its own memory.
bool lie_within_gpu(const std::byte* to, const std::byte* from);

void copy_by_kernel(std::byte* to, const std::byte* from, std::size_t bytes, cudaStream_t stream);

inline constexpr std::size_t kMostOfSeveral = std::size_t{1} << 16;  // bytes per copy
// Small copies in as few launches as possible, one thread block per copy.
void copy_several_by_kernel(std::span<const Stream::Copy> copies, cudaStream_t stream);

}  // namespace lockstep
