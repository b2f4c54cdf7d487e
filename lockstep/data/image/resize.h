// Resizing as defined by tf.image.resize (version 2); the filters are in interpolation.h. Rows are
// blended first, then columns: the cost grows with the sum of both axes' taps, not their product.
#pragma once

#include <vector>

#include "lockstep/data/image/interpolation.h"
#include "lockstep/data/image/loops.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

struct ResizeOptions {
  Interpolation interpolation = Interpolation::Bilinear;
  bool antialias = false;
  // Of the result: f32, or u8 (rounded to nearest and clamped to 0 … 255).
  DType dtype = DType::F32;
};

// Resizes images, (height, width, channels) in u8 or f32. Reuses its buffers; use one per thread.
class Resizer {
 public:
  explicit Resizer(const ImageLoops& loops = image_loops()) : loops_(&loops) {}

  Tensor resize(const Tensor& image, int height, int width, const ResizeOptions& options = {});
  // Writes to an existing tensor: its shape is the new size; its dtype replaces options.dtype.
  void resize_into(const Tensor& image, Tensor& out, const ResizeOptions& options = {});

 private:
  // The row of the source as floats: the source itself, or a widened copy.
  const float* float_row(const Tensor& image, int row);

  const ImageLoops* loops_;
  AxisWeights rows_;
  AxisWeights columns_;
  std::vector<std::vector<float>> widened_;  // row r is in slot r modulo their number
  std::vector<int> widened_row_;             // the row in each slot
  std::vector<const float*> taps_;
  std::vector<float> blended_;
  std::vector<float> result_;
};

// The same for a single image.
Tensor resize_image(const Tensor& image, int height, int width, const ResizeOptions& options = {});

}  // namespace lockstep
