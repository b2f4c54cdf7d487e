// Resizing as tf.image.resize (version 2) defines it; the filters are in interpolation.h. Rows are
// blended first, then columns: the cost is that of the weights of both axes, not of their product.
#pragma once

#include <vector>

#include "lockstep/data/image/interpolation.h"
#include "lockstep/data/image/loops.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

struct ResizeOptions {
  Interpolation interpolation = Interpolation::Bilinear;
  bool antialias = false;
  // Of the result: f32, or u8 (rounded to the nearest, within 0 … 255).
  DType dtype = DType::F32;
};

// Resizes pictures, (height, width, channels) in u8 or f32; one for each thread keeps its memory.
class Resizer {
 public:
  explicit Resizer(const ImageLoops& loops = image_loops()) : loops_(&loops) {}

  Tensor resize(const Tensor& image, int height, int width, const ResizeOptions& options = {});
  // Into memory that is there: its shape says the size, its dtype replaces that of the options.
  void resize_into(const Tensor& image, Tensor& out, const ResizeOptions& options = {});

 private:
  // The row of the source as floats: the source itself, or a widened copy.
  const float* float_row(const Tensor& image, int row);

  const ImageLoops* loops_;
  AxisWeights rows_;
  AxisWeights columns_;
  std::vector<std::vector<float>> widened_;  // row r is in the place r modulo their number
  std::vector<int> widened_row_;             // which row that is
  std::vector<const float*> taps_;
  std::vector<float> blended_;
  std::vector<float> result_;
};

// The same for a single picture.
Tensor resize_image(const Tensor& image, int height, int width, const ResizeOptions& options = {});

}  // namespace lockstep
