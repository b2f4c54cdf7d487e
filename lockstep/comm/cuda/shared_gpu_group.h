// SharedGpuGroup: ranks that are logical devices of one GPU. A collective is three launches on the
// stream of each rank: one in which the ranks meet and learn where the others' memory is, one in
// which each does its slice of the work for all, and one in which they part. Ranks wait for one
// another on the GPU, so that a whole step can be recorded; a wait has a timeout, and ends when the
// group is aborted.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep {

// An error that a launch finds, in memory that the host and the GPU both see; one per rank.
struct GpuFault {
  enum Kind : std::int32_t { None, TimedOut, Disagreed };
  std::int32_t kind = None;
  std::int32_t other = 0;  // the rank that was missing, or that meant another collective
};

// What a rank brings to a round.
struct GpuBrought {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  std::int32_t what = 0;  // kind and dtype in one number
  std::int32_t unused = 0;
};

// The group's memory, as kernels see it.
struct GpuMeeting {
  static constexpr int kMostRanks = 16;
  int size = 0;
  std::uint32_t* ready = nullptr;         // [from][to] on the GPU
  std::uint32_t* done = nullptr;          // [from][to]
  GpuBrought* brought = nullptr;          // [rank]
  std::int32_t* met = nullptr;            // [rank]: whether the ranks met in this round
  GpuFault* faults = nullptr;             // [rank], in host memory
  const std::int32_t* aborted = nullptr;  // in host memory
  std::uint64_t timeout_ns = 0;
};

std::unique_ptr<Group> make_shared_gpu_group(const std::vector<Device*>& devices,
                                             std::chrono::milliseconds timeout);

}  // namespace lockstep
