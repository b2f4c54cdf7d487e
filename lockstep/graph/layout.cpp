#include "lockstep/graph/layout.h"

#include <algorithm>

namespace lockstep {

std::int64_t Layout::elements(const Shape& shape) const {
  std::vector<std::int64_t> block(static_cast<std::size_t>(shape.rank()), 1);
  for (const auto& [axis, size] : blocks) block[static_cast<std::size_t>(axis)] *= size;
  std::int64_t count = 1;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const std::int64_t size = block[static_cast<std::size_t>(axis)];
    count *= (shape[axis] + size - 1) / size * size;
  }
  return count;
}

std::vector<std::vector<std::int64_t>> Layout::offsets(const Shape& shape) const {
  std::vector<std::vector<std::int64_t>> table;
  for (std::int64_t extent : shape.dims()) {
    table.emplace_back(static_cast<std::size_t>(extent), 0);
  }
  // From the innermost factor of the layout outwards: each splits off the low part of an index.
  std::vector<std::int64_t> divisor(table.size(), 1);
  std::int64_t stride = 1;
  for (std::size_t b = blocks.size(); b-- > 0;) {
    const auto [axis, size] = blocks[b];
    auto& entries = table[static_cast<std::size_t>(axis)];
    std::int64_t& below = divisor[static_cast<std::size_t>(axis)];
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i] += static_cast<std::int64_t>(i) / below % size * stride;
    }
    below *= size;
    stride *= size;
  }
  for (std::size_t o = table.size(); o-- > 0;) {
    const std::size_t axis = row_major() ? o : static_cast<std::size_t>(order[o]);
    auto& entries = table[axis];
    const std::int64_t below = divisor[axis];
    for (std::size_t i = 0; i < entries.size(); ++i) {
      entries[i] += static_cast<std::int64_t>(i) / below * stride;
    }
    stride *= (static_cast<std::int64_t>(entries.size()) + below - 1) / below;
  }
  return table;
}

std::string Layout::str() const {
  std::string text;
  for (int axis : order) {
    const bool blocked = std::any_of(blocks.begin(), blocks.end(),
                                     [&](const auto& block) { return block.first == axis; });
    text += static_cast<char>((blocked ? 'A' : 'a') + axis);
  }
  for (const auto& [axis, size] : blocks) {
    text += std::to_string(size) + static_cast<char>('a' + axis);
  }
  return text;
}

}  // namespace lockstep
