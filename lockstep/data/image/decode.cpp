#include "lockstep/data/image/decode.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {

namespace {

constexpr std::array<unsigned char, 3> kJpegStart = {0xFF, 0xD8, 0xFF};
constexpr std::array<unsigned char, 8> kPngStart = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

template <std::size_t kCount>
bool starts_with(std::span<const std::byte> bytes, const std::array<unsigned char, kCount>& start) {
  return bytes.size() >= kCount && std::memcmp(bytes.data(), start.data(), kCount) == 0;
}

// The scaled pixels that overlap [begin, begin + extent), and where in them it begins.
void scale_axis(int begin, int extent, int scale, int& count, double& offset, double& scaled) {
  const int first = begin / scale;
  count = (begin + extent + scale - 1) / scale - first;
  offset = static_cast<double>(begin) / scale - first;
  scaled = static_cast<double>(extent) / scale;
}

}  // namespace

DecodedPart part_of(const ImageInfo& info, const DecodeOptions& options) {
  const ImageRegion region = options.region.value_or(whole(info));
  require(region.x >= 0 && region.y >= 0 && region.width > 0 && region.height > 0 &&
              region.width <= info.width - region.x && region.height <= info.height - region.y,
          "[image] the region {}x{} at ({}, {}) is not inside an image of {}x{}", region.width,
          region.height, region.x, region.y, info.width, info.height);
  DecodedPart part;
  if (info.format == ImageFormat::Jpeg && options.at_least_width > 0 &&
      options.at_least_height > 0) {
    while (part.scale < 8 && region.width / (2 * part.scale) >= options.at_least_width &&
           region.height / (2 * part.scale) >= options.at_least_height) {
      part.scale *= 2;
    }
  }
  scale_axis(region.x, region.width, part.scale, part.width, part.left, part.region_width);
  scale_axis(region.y, region.height, part.scale, part.height, part.top, part.region_height);
  return part;
}

ImageDecoder::ImageDecoder(DecodeLimits limits) : limits_(limits) {}
ImageDecoder::~ImageDecoder() = default;
ImageDecoder::ImageDecoder(ImageDecoder&&) noexcept = default;
ImageDecoder& ImageDecoder::operator=(ImageDecoder&&) noexcept = default;

const ImageInfo& ImageDecoder::open(std::span<const std::byte> bytes, std::string_view label) {
  finish();
  FormatDecoder* decoder = nullptr;
  if (starts_with(bytes, kJpegStart)) {
    if (!jpeg_) jpeg_ = make_jpeg_decoder();
    decoder = jpeg_.get();
  } else if (starts_with(bytes, kPngStart)) {
    if (!png_) png_ = make_png_decoder();
    decoder = png_.get();
  } else if (bytes.empty()) {
    fail<DataError>("[image] {}: the file is empty", label);
  } else {
    fail<DataError>("[image] {}: its {} bytes are neither a JPEG nor a PNG", label, bytes.size());
  }
  info_ = decoder->open(bytes, label, limits_);
  current_ = decoder;
  return info_;
}

const DecodedPart& ImageDecoder::start(const DecodeOptions& options) {
  require(current_ != nullptr, "[image] start() needs a file: call open() first");
  part_ = part_of(info_, options);
  channels_ = channels_of(options.color_mode);
  rows_read_ = 0;
  part_ = current_->start(options, part_);
  return part_;
}

void ImageDecoder::read_row(std::uint8_t* pixels) {
  read_rows(&pixels, 1);
}

int ImageDecoder::read_rows(std::uint8_t* const* rows, int count) {
  require(current_ != nullptr && count > 0 && rows_read_ < part_.height,
          "[image] {} of {} rows were read, but {} more were requested", rows_read_, part_.height,
          count);
  const int done = current_->read_rows(rows, std::min(count, part_.height - rows_read_));
  rows_read_ += done;
  return done;
}

void ImageDecoder::finish() {
  if (current_) current_->finish();
  current_ = nullptr;
}

void ImageDecoder::read_all(std::uint8_t* pixels) {
  constexpr int kRows = 16;
  const std::size_t row_bytes = static_cast<std::size_t>(part_.width) * channels_;
  while (rows_read_ < part_.height) {
    std::array<std::uint8_t*, kRows> rows;
    const int count = std::min(kRows, part_.height - rows_read_);
    for (int i = 0; i < count; ++i) rows[i] = pixels + row_bytes * (rows_read_ + i);
    read_rows(rows.data(), count);
  }
  finish();
}

DecodedPart ImageDecoder::decode(std::span<const std::byte> bytes, std::string_view label,
                                 const DecodeOptions& options, std::span<std::uint8_t> pixels) {
  open(bytes, label);
  const DecodedPart& part = start(options);
  const std::size_t needed = static_cast<std::size_t>(part.width) * part.height * channels_;
  require(pixels.size() >= needed, "[image] {}: {} bytes are too few for {}x{}x{}", label,
          pixels.size(), part.height, part.width, channels_);
  read_all(pixels.data());
  return part;
}

Tensor ImageDecoder::decode(std::span<const std::byte> bytes, std::string_view label,
                            const DecodeOptions& options) {
  open(bytes, label);
  const DecodedPart part = start(options);
  Tensor image(DType::U8, {part.height, part.width, channels_});
  read_all(image.values<std::uint8_t>().data());
  return image;
}

ImageInfo read_image_info(std::span<const std::byte> bytes, std::string_view label,
                          const DecodeLimits& limits) {
  ImageDecoder decoder(limits);
  return decoder.open(bytes, label);
}

}  // namespace lockstep
