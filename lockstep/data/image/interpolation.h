// Interpolation along one axis as weights: output i is the sum of weights(i)[k] × source[first(i) +
// k]. The definitions are those of tf.image.resize (version 2): pixels are squares with centres at
// half-integers, and weights beyond the edge are redistributed to the pixels inside.
//
// The filters are from Keys, "Cubic convolution interpolation" (1981), with a = -1/2, and Mitchell
// and Netravali (1988). Antialiasing widens a filter by the factor of the reduction.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep {

// As in tf.image.resize. Nearest and Area ignore antialiasing.
enum class Interpolation : std::uint8_t {
  Nearest,
  Bilinear,
  Bicubic,
  Area,
  Lanczos3,
  Lanczos5,
  Gaussian,
  MitchellCubic,
};

// "bilinear", "lanczos3", …: Keras's spelling; UsageError for any other.
Interpolation interpolation_named(std::string_view name);

// The interval [begin, begin + extent) of source pixels that is resized; only the pixels
// [first, last) may be read.
struct AxisSource {
  double begin = 0;
  double extent = 0;
  int first = 0;
  int last = 0;
};

// All pixels of an axis.
inline AxisSource whole_axis(int size) {
  return {.begin = 0, .extent = static_cast<double>(size), .first = 0, .last = size};
}

struct AxisOptions {
  Interpolation interpolation = Interpolation::Bilinear;
  bool antialias = false;
  bool mirrored = false;  // output i becomes output size - 1 - i
};

class AxisWeights {
 public:
  // Computes the weights; memory is reused between calls.
  void fill(const AxisSource& source, int outputs, const AxisOptions& options);

  int outputs() const { return static_cast<int>(first_.size()); }
  // The number of weights per output; some may be zero. The pixels of all weights may be read.
  int taps() const { return taps_; }
  int first(int output) const { return first_[static_cast<std::size_t>(output)]; }
  std::span<const float> weights(int output) const {
    return {weights_.data() + static_cast<std::size_t>(output) * stride_,
            static_cast<std::size_t>(taps_)};
  }

 private:
  std::vector<int> first_;
  std::vector<float> weights_;
  std::size_t stride_ = 0;
  int taps_ = 0;
};

}  // namespace lockstep
