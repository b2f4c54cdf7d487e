// Image memory as tiles: a tile is `rows` consecutive rows of `lanes` floats, all of the same
// `lanes` channels. A row-major (…, C) value consists of tiles of all C channels; one in blocks of
// channels ("aDbc8d") has tiles for each image and block. Kernels that work per channel need to
// know no more about a layout, and a tile is small enough to stay in the cache between two passes.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/graph/layout.h"

namespace lockstep::onednn {

struct Tiles {
  std::int64_t images = 0;  // 1 if row-major
  std::int64_t groups = 1;  // of channels
  std::int64_t rows = 0;    // per image: H * W; if row-major, of the whole value
  std::int64_t lanes = 0;
  std::int64_t chunk = 0;  // rows per tile; the last of an image may have fewer

  std::int64_t per_image() const { return (rows + chunk - 1) / chunk; }
  std::int64_t count() const { return images * groups * per_image(); }

  struct Tile {
    std::int64_t begin;    // offset of its first element
    std::int64_t channel;  // its first channel
    std::int64_t rows;
    std::int64_t number;  // among the tiles of the same channels
  };
  Tile tile(std::int64_t index) const {
    const std::int64_t piece = index % per_image();
    const std::int64_t group = index / per_image() % groups;
    const std::int64_t image = index / per_image() / groups;
    const std::int64_t first = piece * chunk;
    return {((image * groups + group) * rows + first) * lanes, group * lanes,
            std::min(chunk, rows - first), image * per_image() + piece};
  }
};

// Nothing for layouts that are neither row-major nor in blocks of channels, or if channels are
// padded.
std::optional<Tiles> tiles_of(const Shape& shape, const Layout& layout);

}  // namespace lockstep::onednn
