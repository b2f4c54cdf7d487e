// The inner loops of image processing, compiled for several instruction sets. The results of all
// versions are bit-identical: fixed-point arithmetic is exact, and floating-point operations keep
// their order and are not contracted (loops.cpp is compiled so).
//
// A resize of bytes in fixed point: rows are blended first, to 16 bits with kRowBits fractional
// bits; then columns, to 32 bits with kRowBits + kWeightBits fractional bits. A bias is added
// before they are converted to floats. Weights are 16-bit numbers with kWeightBits fractional bits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "lockstep/data/image/interpolation.h"

namespace lockstep {

constexpr int kWeightBits = 14;
constexpr int kRowBits = 6;

// Elements that may be read beyond the end of a row, and written beyond the end of a blended one.
constexpr std::size_t kRowSlack = 64;

// The weights of an axis for blending rows: pairs of taps, the last one padded with a zero.
class FixedRows {
 public:
  void fill(const AxisWeights& axis);
  int tap_pairs() const { return tap_pairs_; }
  const std::int16_t* weights(int output) const {
    return weights_.data() + static_cast<std::size_t>(output) * 2 * tap_pairs_;
  }

 private:
  std::vector<std::int16_t> weights_;
  int tap_pairs_ = 0;
};

// The weights of an axis for blending columns of pixels with one or four channels, two outputs at a
// time. For each pair of outputs and pair of taps: the two weights of the first output four times,
// then those of the second.
class FixedColumns {
 public:
  void fill(const AxisWeights& axis, int first_pixel, int channels);
  int outputs() const { return outputs_; }
  int tap_pairs() const { return tap_pairs_; }
  // The first element of each output, counted from the first element of first_pixel.
  const std::uint32_t* first() const { return first_.data(); }
  const std::int16_t* weights() const { return weights_.data(); }

 private:
  std::vector<std::int16_t> quantized_;
  std::vector<std::int16_t> weights_;
  std::vector<std::uint32_t> first_;
  int outputs_ = 0;
  int tap_pairs_ = 0;
};

// value = (blended + bias) × scale, in units of the blended columns.
struct FixedAffine {
  std::array<std::int32_t, 4> bias{};
  std::array<float, 4> scale{};
};

struct ImageLoops {
  // out[i] = Σ rows[k][i] × weights[k], k < 2 × tap_pairs.
  void (*blend_rows)(const std::uint8_t* const* rows, const std::int16_t* weights, int tap_pairs,
                     std::size_t count, std::int16_t* out);
  // A blended row of four-channel pixels to `channels` (3 or 4) floats per pixel.
  void (*blend_columns)(const std::int16_t* row, const FixedColumns& columns,
                        const FixedAffine& affine, int channels, float* out);
  // The same for one channel.
  void (*blend_gray_columns)(const std::int16_t* row, const FixedColumns& columns,
                             const FixedAffine& affine, float* out);

  void (*blend_float_rows)(const float* const* rows, const float* weights, int taps,
                           std::size_t count, float* out);
  void (*blend_float_columns)(const float* row, const AxisWeights& axis, int channels, float* out);

  void (*widen)(const std::uint8_t* in, std::size_t count, float* out);
  // The nearest byte, ties to even.
  void (*to_bytes)(const float* in, std::size_t count, std::uint8_t* out);
  void (*to_f16)(const float* in, std::size_t count, std::uint16_t* out);
  void (*to_bf16)(const float* in, std::size_t count, std::uint16_t* out);
  // Pixels of three floats to three planes.
  void (*split)(const float* pixels, std::size_t count, float* red, float* green, float* blue);
  // Three planes to pixels: pixel[c] = plane[c] × scale[c] + bias[c].
  void (*join)(const float* red, const float* green, const float* blue, const float* scale,
               const float* bias, std::size_t count, float* pixels);

  // Colour jitter on planes with values in [0, 255].
  void (*brightness)(float* values, float factor, std::size_t count);
  // Scales the distance to a grey value: gray + (value - gray) × factor.
  void (*contrast)(float* values, float gray, float factor, std::size_t count);
  double (*sum_of_gray)(const float* red, const float* green, const float* blue, std::size_t count);
  void (*saturation)(float* red, float* green, float* blue, float factor, std::size_t count);
  // Rotates the hue by a fraction of the circle.
  void (*hue)(float* red, float* green, float* blue, float turn, std::size_t count);
};

enum class ImageIsa : std::uint8_t { Any, Avx2, Avx512 };

// Whether this machine supports the instruction set.
bool has_isa(ImageIsa isa);
const ImageLoops& image_loops(ImageIsa isa);
// The loops of the best instruction set that this machine supports.
const ImageLoops& image_loops();

}  // namespace lockstep
