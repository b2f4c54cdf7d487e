// Batch norm's sweeps over a tile (tiles.h).
#pragma once

#include <cstdint>

namespace lockstep::onednn {

struct NormSweeps {
  // Of each lane the mean, and the sum of squared distances from it (m2).
  void (*statistics)(const float* x, std::int64_t rows, std::int64_t lanes, float* mean, float* m2);
  // y = x * scale + shift (+ residual), and ReLU where asked; y may be x.
  void (*result)(const float* x, const float* residual, float* y, std::int64_t rows,
                 std::int64_t lanes, const float* scale, const float* shift);
};
NormSweeps norm_sweeps(bool relu, bool residual);

// scale and shift, from statistics in f32: a gradient finds the same bits again.
struct NormAffine {
  float scale;
  float shift;
};
NormAffine norm_affine(float gamma, float beta, float mean, float variance, double epsilon);

// ReLU's mask: where y > 0, or what x says of y.
enum class NormMask { None, FromResult, FromInput };

struct NormGradForm {
  NormMask mask = NormMask::None;
  bool keep = false;  // g, masked from the result, is also written: a residual's gradient
  bool two = false;   // dy has two summands; where g is kept
};

struct NormGradTile {
  const float* dy;
  const float* dy2;  // where there are two
  const float* x;
  const float* y;      // for a mask from it
  const float* scale;  // y = x * scale + shift, for a mask from x
  const float* shift;
  float* kept;  // may be dy
  std::int64_t rows;
  std::int64_t lanes;
};

// With g = dy (+ dy2), masked:
struct NormGradSweeps {
  // The sums of g and of g * (x - mean).
  void (*sums)(const NormGradTile& tile, const float* mean, float* sum, float* product);
  // dx = a * g + b * x + c. dx may be dy or x. Where g was kept, it is the tile's dy here.
  void (*gradient)(const NormGradTile& tile, float* dx, const float* a, const float* b,
                   const float* c);
};
NormGradSweeps norm_grad_sweeps(const NormGradForm& form);

}  // namespace lockstep::onednn
