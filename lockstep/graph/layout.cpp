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

std::string Layout::str() const {
  std::string text;
  for (int axis : order) {
    const bool cut = std::any_of(blocks.begin(), blocks.end(),
                                 [&](const auto& block) { return block.first == axis; });
    text += static_cast<char>((cut ? 'A' : 'a') + axis);
  }
  for (const auto& [axis, size] : blocks) {
    text += std::to_string(size) + static_cast<char>('a' + axis);
  }
  return text;
}

}  // namespace lockstep
