// Image memory seen as tiles: a tile is `rows` neighbouring rows of `lanes` floats, all of the same
// `lanes` channels. A row-major (…, C) value is tiles of all C channels; one in blocks of channels
// ("aDbc8d") has a tile for each image and block. Kernels that go by channel need know no more of
// a layout than this, and a tile is small enough to stay in the cache between two looks at it.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/graph/layout.h"

namespace lockstep::onednn {

struct Tiles {
  std::int64_t images = 0;  // tiles of one channel group follow each other at `groups` * size
  std::int64_t groups = 1;  // of channels
  std::int64_t rows = 0;    // of a whole image: H * W, or of everything where groups == 1
  std::int64_t lanes = 0;
  std::int64_t chunk = 0;  // rows of a tile; the last of an image may have fewer

  std::int64_t per_image() const { return (rows + chunk - 1) / chunk; }
  std::int64_t count() const { return images * groups * per_image(); }

  struct Tile {
    std::int64_t begin;    // of its first element in memory
    std::int64_t channel;  // its first
    std::int64_t rows;
    std::int64_t number;  // among the tiles of its channels
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

// Nothing for layouts that are neither row-major nor blocks of channels, and where channels are
// padded.
std::optional<Tiles> tiles_of(const Shape& shape, const Layout& layout);

}  // namespace lockstep::onednn
