// The inner loops of gathering rows of a table. Random rows of a big table are in no cache: while
// one row is written, the memory system is told of one that comes later, a line at a time, so that
// neither waits for the other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

inline constexpr std::size_t kCacheLine = 64;
// Of a longer row only the beginning is asked for: the hardware follows by itself.
inline constexpr std::size_t kMostAhead = 16 * kCacheLine;

// A row that is to be read soon, as far as it is asked for; without bytes where there is none.
struct RowAhead {
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

// Asks for all of it at once.
inline void announce(RowAhead row) {
  for (std::size_t i = 0; i < row.bytes; i += kCacheLine) __builtin_prefetch(row.from + i);
}

// Writes a row as it is.
void copy_row(const std::byte* from, std::size_t bytes, std::byte* to, RowAhead ahead);
// Writes a row of bytes as numbers times `scale`.
void widen_row(const std::uint8_t* from, std::size_t count, float scale, float* to, RowAhead ahead);
void widen_row(const std::uint8_t* from, std::size_t count, std::int32_t scale, std::int32_t* to,
               RowAhead ahead);

}  // namespace lockstep
