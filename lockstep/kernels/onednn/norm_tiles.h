// Batch norm's passes over a tile (tiles.h).
#pragma once

#include <cstdint>

namespace lockstep::onednn {

struct NormLoops {
  // The mean of each lane, and the sum of squared differences from it (m2).
  void (*statistics)(const float* x, std::int64_t rows, std::int64_t lanes, float* mean, float* m2);
  // y = x * scale + shift (+ residual), and ReLU if requested; y may be x.
  void (*result)(const float* x, const float* residual, float* y, std::int64_t rows,
                 std::int64_t lanes, const float* scale, const float* shift);
};
NormLoops norm_loops(bool relu, bool residual);

// scale and shift, from statistics in f32, so that the gradient recomputes the same bits.
struct NormAffine {
  float scale;
  float shift;
};
NormAffine norm_affine(float gamma, float beta, float mean, float variance, double epsilon);

// ReLU's mask: y > 0, from y or recomputed from x.
enum class NormMask { None, FromResult, FromInput };

struct NormGradForm {
  NormMask mask = NormMask::None;
  bool keep = false;  // also write g, masked by the result: it is a residual's gradient
  bool two = false;   // dy has two summands; only if g is kept
};

struct NormGradTile {
  const float* dy;
  const float* dy2;  // the second summand, if there is one
  const float* x;
  const float* y;      // for NormMask::FromResult
  const float* scale;  // y = x * scale + shift, for NormMask::FromInput
  const float* shift;
  float* kept;  // may be dy
  std::int64_t rows;
  std::int64_t lanes;
};

// With g = dy (+ dy2), masked:
struct NormGradLoops {
  // The sums of g and of g * (x - mean).
  void (*sums)(const NormGradTile& tile, const float* mean, float* sum, float* product);
  // dx = a * g + b * x + c. dx may be dy or x. If g was kept, it is the tile's dy here.
  void (*gradient)(const NormGradTile& tile, float* dx, const float* a, const float* b,
                   const float* c);
};
NormGradLoops norm_grad_loops(const NormGradForm& form);

}  // namespace lockstep::onednn
