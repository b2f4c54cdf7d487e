#include "lockstep/base/slice.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {

Slice slice_of(std::size_t elements, std::size_t element_bytes, int rank, int size) {
  ensure(size > 0 && rank >= 0 && rank < size && element_bytes > 0,
         "[comm] a slice of {} elements of {} bytes for rank {} of {}", elements, element_bytes,
         rank, size);
  constexpr std::size_t kLine = 64;      // bytes
  constexpr std::size_t kElements = 32;  // a line of 16-bit elements
  const auto ranks = static_cast<std::size_t>(size);
  const std::size_t line = std::max(kLine / element_bytes, kElements);
  const std::size_t unit = elements >= line * ranks ? line : 1;
  const std::size_t units = (elements + unit - 1) / unit;
  // units / ranks and the rest apart, so that no product is larger than `elements`.
  const auto cut = [&](std::size_t at) {
    const std::size_t before = units / ranks * at + units % ranks * at / ranks;
    return std::min(before * unit, elements);
  };
  return {cut(static_cast<std::size_t>(rank)), cut(static_cast<std::size_t>(rank) + 1)};
}

Slice overlap(const Slice& a, const Slice& b) {
  const std::size_t begin = std::clamp(b.begin, a.begin, a.end);
  return {begin, std::clamp(b.end, begin, a.end)};
}

}  // namespace lockstep
