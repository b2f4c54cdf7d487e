// Bitcast: elements as unsigned integers of the same size, for kernels that only move them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "lockstep/base/dtype.h"
#include "lockstep/device/cuda/runtime.h"
#include "lockstep/kernels/cuda/primitives/elements.cuh"

namespace lockstep {

using Word16 = Vector<std::uint32_t, 4>;  // 16 bytes

// Calls f with a value of the type that has so many bytes: 1, 2, 4, 8 or 16.
template <class F>
decltype(auto) dispatch_word(std::size_t bytes, F&& f) {
  switch (bytes) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    case 4:
      return f(std::uint32_t{});
    case 8:
      return f(std::uint64_t{});
    default:
      return f(Word16{});
  }
}

// The same for the size of a dtype's elements.
template <class F>
decltype(auto) dispatch_element(DType dtype, F&& f) {
  switch (size_of(dtype)) {
    case 1:
      return f(std::uint8_t{});
    case 2:
      return f(std::uint16_t{});
    case 4:
      return f(std::uint32_t{});
    default:
      return f(std::uint64_t{});
  }
}

// The size of the widest load, at most 16 bytes, that divides all of these sizes, offsets and
// addresses.
template <class... Bytes>
std::size_t widest_word(Bytes... bytes) {
  const std::size_t all = (static_cast<std::size_t>(bytes) | ...);
  return all == 0 ? kVectorBytes : std::min<std::size_t>(all & (~all + 1), kVectorBytes);
}

inline std::size_t address_of(const std::byte* place) {
  return reinterpret_cast<std::uintptr_t>(place);
}

// Copies within the device's memory.
inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes,
                       cudaStream_t stream) {
  if (bytes == 0 || to == from) return;
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copying");
}

}  // namespace lockstep
