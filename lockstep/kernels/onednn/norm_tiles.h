// The last sweep of batch norm over a tile (tiles.h), in training and with given statistics.
#pragma once

#include <cstdint>

namespace lockstep::onednn {

// y = x * scale + shift (+ residual), and ReLU where asked, over rows of lanes; y may be x.
using TileResult = void (*)(const float* x, const float* residual, float* y, std::int64_t rows,
                            std::int64_t lanes, const float* scale, const float* shift);
TileResult tile_result_for(bool residual, bool relu);

}  // namespace lockstep::onednn
