// ByteRing: a stream of bytes from one process to another, in memory that both map. One thread at a
// time writes and one reads; neither waits here.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace lockstep {

// In shared memory, all zero at first.
struct ByteRingState {
  alignas(64) std::atomic<std::uint64_t> written = 0;
  alignas(64) std::atomic<std::uint64_t> read = 0;
  alignas(64) std::atomic<std::uint32_t> closed = 0;  // by the writer: nothing follows
};

class ByteRing {
 public:
  ByteRing(ByteRingState& state, std::span<std::byte> memory) : state_(state), memory_(memory) {}

  std::size_t readable() const { return state_.written.load() - state_.read.load(); }
  std::size_t space() const { return memory_.size() - readable(); }
  bool closed() const { return state_.closed.load() != 0; }
  void close() { state_.closed.store(1); }

  // As much as there is space for; returns how much that was.
  std::size_t write(std::span<const std::byte> data) {
    const std::uint64_t at = state_.written.load();
    const std::size_t bytes = std::min(data.size(), space());
    for_parts(at, bytes, [&](std::span<std::byte> part, std::size_t done) {
      std::memcpy(part.data(), data.data() + done, part.size());
    });
    state_.written.store(at + bytes);
    return bytes;
  }
  // As much as there is; returns how much that was.
  std::size_t read(std::span<std::byte> data) {
    const std::uint64_t at = state_.read.load();
    const std::size_t bytes = std::min(data.size(), readable());
    for_parts(at, bytes, [&](std::span<std::byte> part, std::size_t done) {
      std::memcpy(data.data() + done, part.data(), part.size());
    });
    state_.read.store(at + bytes);
    return bytes;
  }
  // Skips as much as there is of so many bytes; returns how much that was.
  std::size_t skip(std::size_t most) {
    const std::size_t bytes = std::min(most, readable());
    state_.read.store(state_.read.load() + bytes);
    return bytes;
  }

 private:
  // The bytes from a position on: one part, or two at the end of the memory.
  template <class Call>
  void for_parts(std::uint64_t at, std::size_t bytes, const Call& call) {
    const auto begin = static_cast<std::size_t>(at % memory_.size());
    const std::size_t first = std::min(bytes, memory_.size() - begin);
    if (first > 0) call(memory_.subspan(begin, first), 0);
    if (bytes > first) call(memory_.first(bytes - first), first);
  }

  ByteRingState& state_;
  std::span<std::byte> memory_;
};

}  // namespace lockstep
