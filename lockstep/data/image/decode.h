// Decoding of JPEG and PNG, the whole picture or the part of it that is wanted.
//
// A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size for a fraction of the work (the transform
// computes fewer samples), and outside a region only its entropy code is read. Whatever is wrong
// with a file is a DataError that names it, the byte reached and what the library said; a file that
// ends too early is never a picture, whichever region is wanted.
//
//   ImageDecoder decoder;                       // one a thread, kept
//   const ImageInfo info = decoder.open(bytes, "cat.jpg");
//   const DecodedPart part = decoder.start({.region = {...}, .at_least_width = 224, ...});
//   for (int row = 0; row < part.height; ++row) decoder.read_row(memory for part.width pixels);
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

// What a file may ask for before it is refused.
struct DecodeLimits {
  std::int64_t pixels = std::int64_t{1} << 27;
  int scans = 500;  // of a progressive JPEG: a small file can hold very many over a large picture
};

struct DecodeOptions {
  ColorMode color_mode = ColorMode::Rgb;
  // In pixels of the picture; the whole of it if absent.
  std::optional<ImageRegion> region = std::nullopt;
  // A JPEG's region is decoded at 1/2, 1/4 or 1/8 where it then still has at least so many pixels a
  // side. 0: at its full size.
  int at_least_width = 0;
  int at_least_height = 0;
  // The less exact of libjpeg's fast transforms, which TensorFlow prefers.
  bool fast_dct = false;
  // Lets the part have the columns beside the region that the library decoded anyhow, which saves a
  // copy of every row.
  bool wider_columns = false;
};

// The pixels that a decode gives. The region lies at [left, left + region_width) of their columns
// and [top, top + region_height) of their rows; where they are scaled down, it can begin and end
// within one.
struct DecodedPart {
  int scale = 1;  // 1, 2, 4 or 8: pixels of the picture that became one, a side
  int width = 0;
  int height = 0;
  double left = 0;
  double top = 0;
  double region_width = 0;
  double region_height = 0;
};

// The part that options take of a picture; UsageError where the region is not inside it.
DecodedPart part_of(const ImageInfo& info, const DecodeOptions& options);

// What one library does. Functions are called in this order; each that fails leaves the object
// ready for open().
class FormatDecoder {
 public:
  virtual ~FormatDecoder() = default;
  // Reads the header. `bytes` must stay until finish(), `label` until the next open().
  virtual ImageInfo open(std::span<const std::byte> bytes, std::string_view label,
                         const DecodeLimits& limits) = 0;
  // The part as it will come: wider than `part` where wider_columns asks for no less.
  virtual DecodedPart start(const DecodeOptions& options, const DecodedPart& part) = 0;
  // Writes up to `count` next rows of the part; says how many, at least one.
  virtual int read_rows(std::uint8_t* const* rows, int count) = 0;
  // Gives up what the picture took; may be called at any time.
  virtual void finish() = 0;
};

std::unique_ptr<FormatDecoder> make_jpeg_decoder();
std::unique_ptr<FormatDecoder> make_png_decoder();

// A decoder for one thread. It keeps the libraries' states and its rows from one file to the next.
class ImageDecoder {
 public:
  explicit ImageDecoder(DecodeLimits limits = {});
  ~ImageDecoder();
  ImageDecoder(ImageDecoder&&) noexcept;
  ImageDecoder& operator=(ImageDecoder&&) noexcept;

  // Reads the header and is ready for start(). The format is told by the first bytes. `bytes` and
  // `label` (the file's name, for messages) must stay until finish().
  const ImageInfo& open(std::span<const std::byte> bytes, std::string_view label);
  const DecodedPart& start(const DecodeOptions& options);
  // Writes the next row of the part: width × channels bytes.
  void read_row(std::uint8_t* pixels);
  int read_rows(std::uint8_t* const* rows, int count);
  void finish();

  // All in one: writes the part (height × width × channels) to `pixels`; UsageError where it is too
  // small for it.
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

// Only the header; DataError where it is neither a JPEG's nor a PNG's.
ImageInfo read_image_info(std::span<const std::byte> bytes, std::string_view label,
                          const DecodeLimits& limits = {});

}  // namespace lockstep
