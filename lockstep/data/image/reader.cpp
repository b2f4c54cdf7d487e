#include "lockstep/data/image/reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {

namespace {

constexpr int kRowsAhead = 32;
// The value of 1 in a blended column.
constexpr double kUnit = 1 << (kWeightBits + kRowBits);
// The largest mean, in byte steps, that fits into 32 bits together with the blended value.
constexpr double kLargestMean = 1024;

void check(const ImageReaderOptions& options) {
  require(options.height > 0 && options.width > 0, "[image_reader] a size of {}x{} has no pixels",
          options.height, options.width);
  require(options.mirror_probability >= 0 && options.mirror_probability <= 1,
          "[image_reader] .mirror_probability must be in [0, 1], not {}",
          options.mirror_probability);
  require(options.dtype == DType::F32 || options.dtype == DType::F16 ||
              options.dtype == DType::BF16 || options.dtype == DType::U8,
          "[image_reader] .dtype must be f32, f16, bf16 or u8, not {}", name_of(options.dtype));
  check(options.random_crop);
  check(options.color_jitter);
  require(!options.color_jitter.any() || options.color_mode == ColorMode::Rgb,
          "[image_reader] colour jitter needs the colour mode rgb");
  require(options.crop_fraction > 0 && options.crop_fraction <= 1,
          "[image_reader] .crop_fraction must be in (0, 1], not {}", options.crop_fraction);
  require(options.rescale != 0, "[image_reader] .rescale must not be 0");
  for (int c = 0; c < channels_of(options.color_mode); ++c) {
    const auto channel = static_cast<std::size_t>(c);
    require(options.deviation[channel] != 0, "[image_reader] the deviation of channel {} is 0", c);
    require(std::abs(options.mean[channel] / options.rescale) <= kLargestMean,
            "[image_reader] the mean of channel {}, {}, corresponds to a byte of {} with a rescale "
            "of {}: is one of them in other units?",
            c, options.mean[channel], options.mean[channel] / options.rescale, options.rescale);
  }
}

FixedAffine affine_of(const ImageReaderOptions& options) {
  FixedAffine affine;
  for (std::size_t c = 0; c < 4; ++c) {
    affine.bias[c] = static_cast<std::int32_t>(
        std::lrint(-static_cast<double>(options.mean[c]) / options.rescale * kUnit));
    affine.scale[c] =
        static_cast<float>(static_cast<double>(options.rescale) / options.deviation[c] / kUnit);
  }
  return affine;
}

// The pixels, of `count`, that [begin, begin + extent) overlaps.
AxisSource source_of(double begin, double extent, int count) {
  return {.begin = begin,
          .extent = extent,
          .first = static_cast<int>(std::floor(begin)),
          .last = std::min(count, static_cast<int>(std::ceil(begin + extent)))};
}

}  // namespace

ImageReader::ImageReader(const ImageReaderOptions& options, const ImageLoops& loops)
    : options_(options), loops_(&loops), decoder_(options.limits) {
  check(options_);
  channels_ = channels_of(options_.color_mode);
  pixel_bytes_ = channels_ == 1 ? 1 : 4;
  direct_ = options_.dtype == DType::F32 && (options_.layout == ImageLayout::Hwc || channels_ == 1);
  affine_ = affine_of(options_);
  to_bytes_.scale.fill(static_cast<float>(1 / kUnit));
  row_.resize(static_cast<std::size_t>(options_.width) * static_cast<std::size_t>(channels_));
}

Shape ImageReader::shape() const {
  if (options_.layout == ImageLayout::Hwc) return {options_.height, options_.width, channels_};
  return {channels_, options_.height, options_.width};
}

std::size_t ImageReader::sample_bytes() const {
  return static_cast<std::size_t>(shape().elements()) * size_of(options_.dtype);
}

ImageDraw ImageReader::draw(const ImageInfo& info, RandomSequence& random) const {
  ImageDraw draw;
  draw.crop = whole(info);
  if (options_.crop == ImageCrop::Random) {
    draw.crop = random_resized_crop(info, options_.random_crop, random);
  } else if (options_.crop == ImageCrop::ToAspect) {
    draw.crop = crop_to_aspect(info, options_.width, options_.height, options_.crop_fraction);
  }
  if (options_.mirror_probability > 0) {
    draw.mirrored = random.uniform() < options_.mirror_probability;
  }
  if (options_.color_jitter.any()) {
    draw.color_jitter = draw_color_jitter(options_.color_jitter, random);
  }
  return draw;
}

ImageSample ImageReader::read(std::span<const std::byte> file, std::string_view label,
                              RandomSequence& random, std::span<std::byte> sample) {
  require(sample.size() == sample_bytes(), "[image_reader] {}: {} bytes for a sample of {} bytes",
          label, sample.size(), sample_bytes());
  ImageSample result;
  result.info = decoder_.open(file, label);
  result.draw = draw(result.info, random);
  const bool scaled = options_.scaled_decoding;
  part_ = decoder_.start({
      .color_mode = channels_ == 1 ? ColorMode::Grayscale : ColorMode::Rgba,
      .region = result.draw.crop,
      .at_least_width = scaled ? options_.width : 0,
      .at_least_height = scaled ? options_.height : 0,
      .fast_dct = options_.fast_dct,
      .wider_columns = true,
  });
  result.scale = part_.scale;
  plan(part_, result.draw.mirrored);
  if (options_.color_jitter.any()) {
    write_jittered(result.draw.color_jitter, sample.data());
  } else {
    for (int y = 0; y < options_.height; ++y) write_row(y, sample.data());
  }
  decoder_.finish();
  return result;
}

void ImageReader::plan(const DecodedPart& part, bool mirrored) {
  AxisOptions axis{.interpolation = options_.interpolation, .antialias = options_.antialias};
  const AxisSource down = source_of(part.top, part.region_height, part.height);
  row_axis_.fill(down, options_.height, axis);
  rows_.fill(row_axis_);
  axis.mirrored = mirrored;
  const AxisSource across = source_of(part.left, part.region_width, part.width);
  column_axis_.fill(across, options_.width, axis);
  first_column_ = across.first;
  columns_.fill(column_axis_, first_column_, pixel_bytes_);

  const auto pixel = static_cast<std::size_t>(pixel_bytes_);
  blended_count_ = static_cast<std::size_t>(across.last - across.first) * pixel;
  // Pairs of taps can extend one pixel further than the taps.
  blended_.resize(blended_count_ + pixel + kRowSlack);
  ring_rows_ = row_axis_.taps() + kRowsAhead;
  ring_stride_ = static_cast<std::size_t>(part.width) * pixel + kRowSlack;
  const std::size_t ring_bytes = ring_stride_ * static_cast<std::size_t>(ring_rows_);
  if (ring_.size() < ring_bytes) ring_.resize(ring_bytes);
  taps_.resize(2 * static_cast<std::size_t>(rows_.tap_pairs()));
  rows_decoded_ = 0;
}

// Decodes several rows ahead: every switch between decoding and blending evicts caches.
void ImageReader::decode_until(int end) {
  if (rows_decoded_ >= end) return;
  const int target = std::min(end + kRowsAhead, part_.height);
  while (rows_decoded_ < target) {
    std::array<std::uint8_t*, kRowsAhead> rows;
    const int count = std::min(kRowsAhead, target - rows_decoded_);
    const int place = rows_decoded_ % ring_rows_;
    for (int i = 0; i < count; ++i) {
      const int wrapped = place + i < ring_rows_ ? place + i : place + i - ring_rows_;
      rows[static_cast<std::size_t>(i)] =
          ring_.data() + static_cast<std::size_t>(wrapped) * ring_stride_;
    }
    rows_decoded_ += decoder_.read_rows(rows.data(), count);
  }
}

void ImageReader::blend(int y, float* out) {
  const int first = row_axis_.first(y);
  const int taps = row_axis_.taps();
  decode_until(first + taps);
  const std::size_t column = static_cast<std::size_t>(first_column_ * pixel_bytes_);
  for (int k = 0; k < static_cast<int>(taps_.size()); ++k) {
    // The last of an odd number of taps is paired with itself, with a weight of zero.
    taps_[static_cast<std::size_t>(k)] = ring_row(first + std::min(k, taps - 1)) + column;
  }
  loops_->blend_rows(taps_.data(), rows_.weights(y), rows_.tap_pairs(), blended_count_,
                     blended_.data());
  const FixedAffine& affine = options_.color_jitter.any() ? to_bytes_ : affine_;
  if (channels_ == 1) {
    loops_->blend_gray_columns(blended_.data(), columns_, affine, out);
  } else {
    loops_->blend_columns(blended_.data(), columns_, affine, channels_, out);
  }
}

void ImageReader::write_row(int y, std::byte* sample) {
  if (direct_) {
    blend(y, reinterpret_cast<float*>(sample) + row_.size() * static_cast<std::size_t>(y));
    return;
  }
  blend(y, row_.data());
  store(row_.data(), y, sample);
}

void ImageReader::write_jittered(const ColorJitterDraw& draw, std::byte* sample) {
  const auto width = static_cast<std::size_t>(options_.width);
  const std::size_t plane = width * static_cast<std::size_t>(options_.height);
  planes_.resize(3 * plane);
  float* const red = planes_.data();
  float* const green = red + plane;
  float* const blue = green + plane;
  for (int y = 0; y < options_.height; ++y) {
    const std::size_t at = width * static_cast<std::size_t>(y);
    blend(y, row_.data());
    loops_->split(row_.data(), width, red + at, green + at, blue + at);
  }
  apply_color_jitter(draw, red, green, blue, plane, *loops_);
  std::array<float, 3> scale;
  std::array<float, 3> bias;
  for (std::size_t c = 0; c < 3; ++c) {
    scale[c] = options_.rescale / options_.deviation[c];
    bias[c] = -options_.mean[c] / options_.deviation[c];
  }
  for (int y = 0; y < options_.height; ++y) {
    const std::size_t at = width * static_cast<std::size_t>(y);
    loops_->join(red + at, green + at, blue + at, scale.data(), bias.data(), width, row_.data());
    store(row_.data(), y, sample);
  }
}

void ImageReader::store(const float* values, int y, std::byte* sample) {
  const auto width = static_cast<std::size_t>(options_.width);
  const auto channels = static_cast<std::size_t>(channels_);
  const std::size_t row = static_cast<std::size_t>(y);
  const std::size_t element = size_of(options_.dtype);
  if (options_.layout == ImageLayout::Hwc || channels == 1) {
    convert(values, width * channels, sample + row * width * channels * element);
    return;
  }
  constexpr std::size_t kRun = 256;
  std::array<float, kRun> run;
  for (std::size_t c = 0; c < channels; ++c) {
    const std::size_t at = (c * static_cast<std::size_t>(options_.height) + row) * width;
    for (std::size_t begin = 0; begin < width; begin += kRun) {
      const std::size_t count = std::min(kRun, width - begin);
      for (std::size_t x = 0; x < count; ++x) run[x] = values[(begin + x) * channels + c];
      convert(run.data(), count, sample + (at + begin) * element);
    }
  }
}

void ImageReader::convert(const float* values, std::size_t count, std::byte* out) const {
  switch (options_.dtype) {
    case DType::U8:
      return loops_->to_bytes(values, count, reinterpret_cast<std::uint8_t*>(out));
    case DType::F16:
      return loops_->to_f16(values, count, reinterpret_cast<std::uint16_t*>(out));
    case DType::BF16:
      return loops_->to_bf16(values, count, reinterpret_cast<std::uint16_t*>(out));
    default:
      std::memcpy(out, values, count * sizeof(float));
  }
}

}  // namespace lockstep
