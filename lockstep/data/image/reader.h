// From the bytes of a file to a sample of a batch in one pass: header, choice of the crop, decoding
// of only that region, resizing, mirroring, colour jitter, normalisation, dtype and layout.
//
// Rows of the image are decoded into a small ring buffer. As soon as it holds the rows of an output
// row, they are blended; then the columns are blended to the finished output row, which is written
// directly into the batch. The decoded image is never stored as a whole, so the working set stays
// in the cache; only colour jitter needs a second pass over the sample.
//
// Blending is fixed-point: a sample differs from the exact one by less than 1/16 of a byte step,
// and is bit-identical on every instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/base/dtype.h"
#include "lockstep/base/random.h"
#include "lockstep/base/shape.h"
#include "lockstep/data/image/color_jitter.h"
#include "lockstep/data/image/crop.h"
#include "lockstep/data/image/decode.h"
#include "lockstep/data/image/interpolation.h"
#include "lockstep/data/image/loops.h"

namespace lockstep {

// Mean and standard deviation of ImageNet's pixels in [0, 1], as published networks use them.
constexpr std::array<float, 4> kImageNetMean = {0.485f, 0.456f, 0.406f, 0.0f};
constexpr std::array<float, 4> kImageNetDeviation = {0.229f, 0.224f, 0.225f, 1.0f};

// Whole: the whole image, which may change its aspect ratio. ToAspect: the largest centred region
// with the aspect ratio of the sample.
enum class ImageCrop : std::uint8_t { Whole, ToAspect, Random };

struct ImageReaderOptions {
  int height = 224;
  int width = 224;
  ColorMode color_mode = ColorMode::Rgb;
  ImageCrop crop = ImageCrop::Whole;
  double crop_fraction = 1;  // for ToAspect, per side: 224 / 256 for the usual evaluation
  RandomResizedCrop random_crop = {};
  float mirror_probability = 0;  // of swapping left and right
  ColorJitter color_jitter = {};
  Interpolation interpolation = Interpolation::Bilinear;
  bool antialias = false;
  // Decode JPEGs that are much too large at 1/2, 1/4 or 1/8. Keras decodes all pixels.
  bool scaled_decoding = true;
  bool fast_dct = false;
  // A value is (byte × rescale - mean) / deviation, per channel.
  float rescale = 1;
  std::array<float, 4> mean = {0, 0, 0, 0};
  std::array<float, 4> deviation = {1, 1, 1, 1};
  DType dtype = DType::F32;  // or f16, bf16, u8 (rounded)
  ImageLayout layout = ImageLayout::Hwc;
  DecodeLimits limits = {};
};

// The random choices for one sample.
struct ImageDraw {
  ImageRegion crop;
  bool mirrored = false;
  ColorJitterDraw color_jitter;
};

// What read() did.
struct ImageSample {
  ImageInfo info;
  ImageDraw draw;
  int scale = 1;  // it was decoded at 1 / scale of its size
};

// Reads samples; use one per thread. UsageError for options that contradict each other.
class ImageReader {
 public:
  explicit ImageReader(const ImageReaderOptions& options, const ImageLoops& loops = image_loops());

  // The shape of a sample: (height, width, channels), or channels first.
  Shape shape() const;
  std::size_t sample_bytes() const;

  // The random choices for an image; they depend only on the sequence and the size of the image.
  ImageDraw draw(const ImageInfo& info, RandomSequence& random) const;

  // Writes one sample of sample_bytes() bytes. `label` names the file in errors. After a DataError
  // the contents of `sample` are undefined, and the reader is ready for the next file.
  ImageSample read(std::span<const std::byte> file, std::string_view label, RandomSequence& random,
                   std::span<std::byte> sample);

 private:
  // Plans the resize of a decoded part: the weights of both axes and the ring buffer for its rows.
  void plan(const DecodedPart& part, bool mirrored);
  // Decodes rows until the ring buffer holds all before `end`.
  void decode_until(int end);
  // Computes the floats of an output row, (width, channels).
  void blend(int y, float* out);
  void write_row(int y, std::byte* sample);
  void write_jittered(const ColorJitterDraw& draw, std::byte* sample);
  // Stores the floats of row y, (width, channels), in the sample's dtype and layout.
  void store(const float* values, int y, std::byte* sample);
  void convert(const float* values, std::size_t count, std::byte* out) const;

  std::uint8_t* ring_row(int row) {
    return ring_.data() + static_cast<std::size_t>(row % ring_rows_) * ring_stride_;
  }

  ImageReaderOptions options_;
  const ImageLoops* loops_;
  int channels_ = 0;      // of the sample
  int pixel_bytes_ = 0;   // of a decoded pixel: colour is decoded with alpha to keep pixels aligned
  bool direct_ = false;   // output rows need no conversion: they are written into the sample
  FixedAffine affine_;    // to the sample's values
  FixedAffine to_bytes_;  // to values of 0 … 255
  ImageDecoder decoder_;

  DecodedPart part_;
  AxisWeights row_axis_;
  AxisWeights column_axis_;
  FixedRows rows_;
  FixedColumns columns_;
  int first_column_ = 0;
  std::size_t blended_count_ = 0;  // elements of a blended row
  int rows_decoded_ = 0;
  int ring_rows_ = 0;
  std::size_t ring_stride_ = 0;
  std::vector<std::uint8_t> ring_;
  std::vector<const std::uint8_t*> taps_;
  std::vector<std::int16_t> blended_;
  std::vector<float> row_;
  std::vector<float> planes_;  // the sample, one plane per channel
};

}  // namespace lockstep
