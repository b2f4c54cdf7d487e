#include "lockstep/kernels/onednn/tiles.h"

#include <algorithm>

namespace lockstep::onednn {

std::optional<Tiles> tiles_of(const Shape& shape, const Layout& layout) {
  constexpr std::int64_t kTileFloats = 16 * 1024;  // 64 KiB: half of a small second-level cache
  if (shape.rank() < 2 || shape.elements() == 0) return {};
  const std::int64_t channels = shape[-1];
  Tiles tiles;
  if (layout.row_major()) {
    tiles.images = 1;
    tiles.lanes = channels;
    tiles.rows = shape.elements() / channels;
  } else {
    const int last = shape.rank() - 1;
    if (layout.blocks.size() != 1 || layout.blocks[0].first != last) return {};
    if (channels % layout.blocks[0].second != 0) return {};
    // Outer order: the batch, the channel blocks, then the spatial axes in order; axes of extent
    // one may be anywhere.
    std::vector<int> expected = {0, last};
    for (int axis = 1; axis < last; ++axis) expected.push_back(axis);
    const auto is_long = [&](int axis) {
      return (axis == last ? channels / layout.blocks[0].second : shape[axis]) > 1;
    };
    std::vector<int> wanted;
    std::vector<int> actual;
    std::copy_if(expected.begin(), expected.end(), std::back_inserter(wanted), is_long);
    std::copy_if(layout.order.begin(), layout.order.end(), std::back_inserter(actual), is_long);
    if (wanted != actual) return {};
    tiles.images = shape[0];
    tiles.lanes = layout.blocks[0].second;
    tiles.groups = channels / tiles.lanes;
    tiles.rows = shape.elements() / shape[0] / channels;
  }
  tiles.chunk = std::clamp<std::int64_t>(kTileFloats / tiles.lanes, 1, tiles.rows);
  return tiles;
}

}  // namespace lockstep::onednn
