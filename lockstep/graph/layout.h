// Layout: how the elements of a value are arranged in memory. Row-major unless the layout pass
// chose another one for a backend: an order of the axes, some of them split into inner blocks.
// Spelled like oneDNN's format tags, over the axes of the value itself: a (N, H, W, C) value in
// blocks of eight channels is "aDbc8d". A blocked axis is zero-padded to whole blocks.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/shape.h"

namespace lockstep {

struct Layout {
  std::vector<int> order;  // outer axes, outermost first; empty: row-major
  std::vector<std::pair<int, std::int64_t>> blocks;  // (axis, size), outermost first

  bool row_major() const { return order.empty(); }
  // Elements in memory for a value of this shape, padding included.
  std::int64_t elements(const Shape& shape) const;
  // The offset of an element in memory is a sum with one term per axis: element (i, j, …) of a
  // value of this shape is at table[0][i] + table[1][j] + …
  std::vector<std::vector<std::int64_t>> offsets(const Shape& shape) const;
  std::string str() const;
  bool operator==(const Layout&) const = default;
};

}  // namespace lockstep
