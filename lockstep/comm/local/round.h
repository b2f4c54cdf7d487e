// What one rank brings to one round of a collective.
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/base/dtype.h"

namespace lockstep {

enum class CollectiveKind : std::uint8_t { AllReduce, ReduceScatter, AllGather, Broadcast };

// Written by its rank, read by all: on its own cache line.
struct alignas(64) Round {
  CollectiveKind kind = CollectiveKind::AllReduce;
  DType dtype = DType::U8;
  int root = 0;  // of a broadcast, else 0
  // The rank's memory; other processes cannot use it.
  std::byte* data = nullptr;
  std::size_t bytes = 0;         // of the whole collective
  std::uint64_t collective = 0;  // its number, from 0

  std::size_t elements() const { return bytes / size_of(dtype); }
  // Whether two ranks mean the same collective.
  bool agrees_with(const Round& other) const {
    return kind == other.kind && dtype == other.dtype && root == other.root && bytes == other.bytes;
  }
};

}  // namespace lockstep
