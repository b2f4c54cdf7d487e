// Slices: how elements that lie one after the other are divided between the ranks of a group.
#pragma once

#include <cstddef>

namespace lockstep {

struct Slice {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t size() const { return end - begin; }
  bool operator==(const Slice&) const = default;
};

// The part of `elements` that a rank works on: equal slices, in the order of the ranks, cut at
// whole cache lines where there are enough elements. Values of 2, 4 or 8 bytes are cut alike, so
// that a rank's slice of parameters is its slice of them in 16 bits, too.
Slice slice_of(std::size_t elements, std::size_t element_bytes, int rank, int size);

// What two ranges of elements have in common; where there is nothing, an empty range inside `a`.
Slice overlap(const Slice& a, const Slice& b);

}  // namespace lockstep
