// Decodes JPEG and PNG, the whole image or a region of it.
//
// A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size for a fraction of the work (the inverse DCT
// computes fewer samples), and outside a region only its entropy code is decoded. Any problem with
// a file is a DataError with its name, the byte reached and the library's message. A file that was
// cut off is always an error, even if the region is complete.
//
//   ImageDecoder decoder;                       // one per thread, reused
//   const ImageInfo info = decoder.open(bytes, "cat.jpg");
//   const DecodedPart part = decoder.start({.region = {...}, .at_least_width = 224, ...});
//   for (int row = 0; row < part.height; ++row) decoder.read_row(buffer of part.width pixels);
//   decoder.finish();
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "lockstep/data/image/image.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Files beyond these limits are refused.
struct DecodeLimits {
  std::int64_t pixels = std::int64_t{1} << 27;
  int scans = 500;  // of a progressive JPEG: a small file can have very many over a large image
};

struct DecodeOptions {
  ColorMode color_mode = ColorMode::Rgb;
  // In pixels of the image; nullopt: the whole image.
  std::optional<ImageRegion> region = std::nullopt;
  // The region of a JPEG is decoded at 1/2, 1/4 or 1/8 if it then still has at least this size. 0:
  // at full size.
  int at_least_width = 0;
  int at_least_height = 0;
  // libjpeg's faster, less accurate inverse DCT, which TensorFlow prefers.
  bool fast_dct = false;
  // Allows the result to include columns outside the region that the library decodes anyway, which
  // saves a copy of every row.
  bool wider_columns = false;
};

// The pixels that decoding returns. The region is at columns [left, left + region_width) and rows
// [top, top + region_height) of them; if they are scaled down, it may begin and end inside a pixel.
struct DecodedPart {
  int scale = 1;  // 1, 2, 4 or 8: the factor by which both sides are scaled down
  int width = 0;
  int height = 0;
  double left = 0;
  double top = 0;
  double region_width = 0;
  double region_height = 0;
};

// The part of an image that these options decode; UsageError if the region is not inside the image.
DecodedPart part_of(const ImageInfo& info, const DecodeOptions& options);

// The decoder of one format. Functions are called in this order; after one throws, the object is
// ready for open().
class FormatDecoder {
 public:
  virtual ~FormatDecoder() = default;
  // Reads the header. `bytes` must stay valid until finish(), `label` until the next open().
  virtual ImageInfo open(std::span<const std::byte> bytes, std::string_view label,
                         const DecodeLimits& limits) = 0;
  // Returns the actual part: it may be wider than `part` with wider_columns.
  virtual DecodedPart start(const DecodeOptions& options, const DecodedPart& part) = 0;
  // Writes up to `count` of the next rows of the part; returns how many, at least one.
  virtual int read_rows(std::uint8_t* const* rows, int count) = 0;
  // Releases what the image needed; may be called at any time.
  virtual void finish() = 0;
};

std::unique_ptr<FormatDecoder> make_jpeg_decoder();
std::unique_ptr<FormatDecoder> make_png_decoder();

// A decoder for one thread. It keeps the state of the libraries and its buffers between files.
class ImageDecoder {
 public:
  explicit ImageDecoder(DecodeLimits limits = {});
  ~ImageDecoder();
  ImageDecoder(ImageDecoder&&) noexcept;
  ImageDecoder& operator=(ImageDecoder&&) noexcept;

  // Reads the header; call start() next. The first bytes determine the format. `bytes` and `label`
  // (the file's name, for messages) must stay valid until finish().
  const ImageInfo& open(std::span<const std::byte> bytes, std::string_view label);
  const DecodedPart& start(const DecodeOptions& options);
  // Writes the next row of the part: width × channels bytes.
  void read_row(std::uint8_t* pixels);
  int read_rows(std::uint8_t* const* rows, int count);
  void finish();

  // All in one: writes the part (height × width × channels); UsageError if `pixels` is too small.
  DecodedPart decode(std::span<const std::byte> bytes, std::string_view label,
                     const DecodeOptions& options, std::span<std::uint8_t> pixels);
  // The same into a new tensor, u8, (height, width, channels).
  Tensor decode(std::span<const std::byte> bytes, std::string_view label,
                const DecodeOptions& options = {});

 private:
  void read_all(std::uint8_t* pixels);

  DecodeLimits limits_;
  std::unique_ptr<FormatDecoder> jpeg_;
  std::unique_ptr<FormatDecoder> png_;
  FormatDecoder* current_ = nullptr;
  ImageInfo info_;
  DecodedPart part_;
  int channels_ = 0;
  int rows_read_ = 0;
};

// Reads only the header; DataError if it is neither a JPEG nor a PNG.
ImageInfo read_image_info(std::span<const std::byte> bytes, std::string_view label,
                          const DecodeLimits& limits = {});

}  // namespace lockstep
