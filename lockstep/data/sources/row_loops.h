// The inner loops of gathering rows of a table. Random rows of a large table are not in any cache:
// while one row is written, a later one is prefetched, one cache line at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

inline constexpr std::size_t kCacheLine = 64;
// Longer rows are prefetched only up to here; the hardware prefetcher does the rest.
inline constexpr std::size_t kMostAhead = 16 * kCacheLine;

// The part of a later row that is prefetched; empty if there is none.
struct RowAhead {
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

// Prefetches all of it at once.
inline void announce(RowAhead row) {
  for (std::size_t i = 0; i < row.bytes; i += kCacheLine) __builtin_prefetch(row.from + i);
}

// Copies a row.
void copy_row(const std::byte* from, std::size_t bytes, std::byte* to, RowAhead ahead);
// Converts a row of bytes to T and multiplies it by `scale`.
void widen_row(const std::uint8_t* from, std::size_t count, float scale, float* to, RowAhead ahead);
void widen_row(const std::uint8_t* from, std::size_t count, std::int32_t scale, std::int32_t* to,
               RowAhead ahead);

}  // namespace lockstep
