// Interpolation along one axis as weights: output i is the sum of weights(i)[k] × source[first(i) +
// k]. The definitions are those of tf.image.resize (version 2): pixels are squares whose centres
// lie at halves, weights beyond the edge are given to what is inside.
//
// Where the filters come from: Keys, "Cubic convolution interpolation" (1981), with a = -1/2;
// Mitchell and Netravali (1988). Antialiasing widens a filter by the factor of the reduction.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep {

// As tf.image.resize has them. Nearest and area have no use for antialiasing and ignore it.
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

// The stretch of source pixels that becomes the axis: [begin, begin + extent), of whose pixels only
// [first, last) may be read.
struct AxisSource {
  double begin = 0;
  double extent = 0;
  int first = 0;
  int last = 0;
};

// The pixels 0 … size of a picture.
inline AxisSource whole_axis(int size) {
  return {.begin = 0, .extent = static_cast<double>(size), .first = 0, .last = size};
}

struct AxisOptions {
  Interpolation interpolation = Interpolation::Bilinear;
  bool antialias = false;
  bool mirrored = false;  // output i takes the place of output size - 1 - i
};

class AxisWeights {
 public:
  // Fills the table; its memory is kept from one call to the next.
  void fill(const AxisSource& source, int outputs, const AxisOptions& options);

  int outputs() const { return static_cast<int>(first_.size()); }
  // The weights of every output, some of them zero. All pixels that they stand for may be read.
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
