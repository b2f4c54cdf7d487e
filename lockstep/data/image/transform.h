// Pictures as tensors, one step at a time: for map functions that do something of their own. All
// take (height, width, channels) unless they say otherwise. What ImageReader does in one go is much
// faster.
#pragma once

#include <span>

#include "lockstep/data/image/color_jitter.h"
#include "lockstep/data/image/image.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// A copy of a region; UsageError where it is not inside.
Tensor crop_image(const Tensor& image, const ImageRegion& region);

// Left for right.
Tensor mirror_image(const Tensor& image);

// (value × rescale - mean) / deviation for each channel, in f32, of a picture in u8 or f32.
struct Normalization {
  float rescale = 1;
  std::span<const float> mean = {};       // one a channel, or none: 0
  std::span<const float> deviation = {};  // one a channel, or none: 1
};
Tensor normalize_image(const Tensor& image, const Normalization& options);

// The same numbers as u8 (rounded, within 0 … 255), f32, f16 or bf16, of a picture in u8 or f32.
Tensor convert_image(const Tensor& image, DType dtype);

// (height, width, channels) to (channels, height, width), and back.
Tensor to_chw(const Tensor& image);
Tensor to_hwc(const Tensor& image);

// Applies what was drawn to a picture of three channels with values in 0 … 255; its dtype stays.
Tensor jitter_colors(const Tensor& image, const ColorJitterDraw& draw);

}  // namespace lockstep
