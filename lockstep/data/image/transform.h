// Operations on images as tensors, for users' map functions. All take (height, width, channels)
// unless they say otherwise. ImageReader, which does everything in one pass, is much faster.
#pragma once

#include <span>

#include "lockstep/data/image/color_jitter.h"
#include "lockstep/data/image/image.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// A copy of a region; UsageError if it is not inside the image.
Tensor crop_image(const Tensor& image, const ImageRegion& region);

// Swaps left and right.
Tensor mirror_image(const Tensor& image);

// (value × rescale - mean) / deviation per channel, in f32, for an image in u8 or f32.
struct Normalization {
  float rescale = 1;
  std::span<const float> mean = {};       // one per channel; if empty, 0
  std::span<const float> deviation = {};  // one per channel; if empty, 1
};
Tensor normalize_image(const Tensor& image, const Normalization& options);

// Converts an image in u8 or f32 to u8 (rounded, clamped to 0 … 255), f32, f16 or bf16.
Tensor convert_image(const Tensor& image, DType dtype);

// (height, width, channels) to (channels, height, width), and back.
Tensor to_chw(const Tensor& image);
Tensor to_hwc(const Tensor& image);

// Applies colour jitter to an image of three channels with values in 0 … 255; keeps its dtype.
Tensor jitter_colors(const Tensor& image, const ColorJitterDraw& draw);

}  // namespace lockstep
