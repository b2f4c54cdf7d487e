#include "lockstep/kernels/onednn/norm_tiles.h"

#include "lockstep/base/vectorized.h"

namespace lockstep::onednn {
namespace {

template <bool kResidual, bool kRelu>
LOCKSTEP_INLINE void tile_result(const float* x, const float* residual, float* y, std::int64_t rows,
                                 std::int64_t lanes, const float* scale, const float* shift) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t l = 0; l < lanes; ++l) {
      float value = x[r * lanes + l] * scale[l] + shift[l];
      if constexpr (kResidual) value += residual[r * lanes + l];
      if constexpr (kRelu) value = value < 0.0f ? 0.0f : value;  // a NaN stays one
      y[r * lanes + l] = value;
    }
  }
}

// The same for the commonest width, known to the compiler.
template <bool kResidual, bool kRelu>
LOCKSTEP_VECTORIZED void any_tile_result(const float* x, const float* residual, float* y,
                                         std::int64_t rows, std::int64_t lanes, const float* scale,
                                         const float* shift) {
  if (lanes == 8) {
    tile_result<kResidual, kRelu>(x, residual, y, rows, 8, scale, shift);
  } else {
    tile_result<kResidual, kRelu>(x, residual, y, rows, lanes, scale, shift);
  }
}

}  // namespace

TileResult tile_result_for(bool residual, bool relu) {
  if (residual) return relu ? any_tile_result<true, true> : any_tile_result<true, false>;
  return relu ? any_tile_result<false, true> : any_tile_result<false, false>;
}

}  // namespace lockstep::onednn
