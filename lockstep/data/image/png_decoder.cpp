// PNG with libpng: every kind becomes bytes of grey, colour, or colour with alpha. As in
// TensorFlow, 16 bits lose their lower byte, and alpha that is not requested is dropped, not
// blended.
#include <png.h>

#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/image/decode.h"

namespace lockstep {

namespace {

// The highest compression ratio of deflate.
constexpr std::uint64_t kMostBytesPerByte = 1032;
constexpr std::size_t kSignatureBytes = 8;

std::uint32_t big_endian(const std::byte* bytes) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value = value << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return value;
}

class PngDecoder final : public FormatDecoder {
 public:
  PngDecoder() = default;
  ~PngDecoder() override { finish(); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  ImageInfo open(std::span<const std::byte> bytes, std::string_view label,
                 const DecodeLimits& limits) override;
  DecodedPart start(const DecodeOptions& options, const DecodedPart& part) override;
  int read_rows(std::uint8_t* const* rows, int count) override;
  void finish() override { png_destroy_read_struct(&png_, &png_info_, nullptr); }

 private:
  [[noreturn]] static void on_error(png_structp png, png_const_charp message);
  static png_voidp on_allocate(png_structp png, png_alloc_size_t bytes);
  static void on_warning(png_structp, png_const_charp) {}
  static void on_read(png_structp png, png_bytep to, std::size_t count);

  // Runs calls of the library; DataError if one fails, std::bad_alloc if memory runs out.
  template <class Calls>
  void guarded(Calls calls);
  [[noreturn]] void fail_as_data();
  void check_size(const DecodeLimits& limits);
  // Walks from chunk to chunk: a file that was cut off lacks the last one.
  void check_end() const;
  void choose_conversions();
  void copy_region(const std::uint8_t* from, std::uint8_t* to) const;

  png_structp png_ = nullptr;
  png_infop png_info_ = nullptr;
  std::jmp_buf jump_{};
  std::array<char, 256> message_{};
  bool out_of_memory_ = false;
  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
  std::string_view label_;
  ImageInfo info_;
  ImageRegion region_;
  ColorMode color_mode_ = ColorMode::Rgb;
  std::size_t file_channels_ = 0;            // of the rows that libpng returns
  int next_row_ = 0;                         // of the image; of the region if interlaced
  std::vector<std::uint8_t> pixels_;         // one row; the whole image if interlaced
  std::vector<std::uint8_t*> row_pointers_;  // into pixels_
};

void PngDecoder::on_error(png_structp png, png_const_charp message) {
  auto& decoder = *static_cast<PngDecoder*>(png_get_error_ptr(png));
  std::snprintf(decoder.message_.data(), decoder.message_.size(), "%s", message);
  std::longjmp(decoder.jump_, 1);
}

// libpng reports a failed allocation like any other error; the flag keeps it from counting as a
// damaged file.
png_voidp PngDecoder::on_allocate(png_structp png, png_alloc_size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) static_cast<PngDecoder*>(png_get_mem_ptr(png))->out_of_memory_ = true;
  return memory;
}

void PngDecoder::on_read(png_structp png, png_bytep to, std::size_t count) {
  auto& decoder = *static_cast<PngDecoder*>(png_get_io_ptr(png));
  if (count > decoder.bytes_.size() - decoder.position_) png_error(png, "the file ends too early");
  std::memcpy(to, decoder.bytes_.data() + decoder.position_, count);
  decoder.position_ += count;
}

template <class Calls>
void PngDecoder::guarded(Calls calls) {
  if (setjmp(jump_) != 0) fail_as_data();
  calls();
}

void PngDecoder::fail_as_data() {
  finish();
  if (out_of_memory_) throw std::bad_alloc();
  fail<DataError>("[decode_png] {}: {} (at byte {} of {})", label_, message_.data(), position_,
                  bytes_.size());
}

ImageInfo PngDecoder::open(std::span<const std::byte> bytes, std::string_view label,
                           const DecodeLimits& limits) {
  finish();
  bytes_ = bytes;
  label_ = label;
  position_ = 0;
  out_of_memory_ = false;
  guarded([this] {
    png_ = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, this, on_error, on_warning, this,
                                    on_allocate,
                                    [](png_structp, png_voidp memory) { std::free(memory); });
    if (png_ != nullptr) png_info_ = png_create_info_struct(png_);
  });
  if (png_ == nullptr || png_info_ == nullptr) throw std::bad_alloc();
  guarded([this] {
    // check_size() checks sizes once they are known.
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
    png_set_read_fn(png_, this, on_read);
    // Profiles, texts and times do not change pixels.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, 0);
    png_read_info(png_, png_info_);
  });
  info_ = {.format = ImageFormat::Png,
           .width = static_cast<int>(png_get_image_width(png_, png_info_)),
           .height = static_cast<int>(png_get_image_height(png_, png_info_)),
           .channels = png_get_channels(png_, png_info_),
           .bits = png_get_bit_depth(png_, png_info_),
           .progressive = png_get_interlace_type(png_, png_info_) != PNG_INTERLACE_NONE};
  check_size(limits);
  if (png_get_color_type(png_, png_info_) == PNG_COLOR_TYPE_PALETTE) info_.channels = 3;
  return info_;
}

void PngDecoder::check_size(const DecodeLimits& limits) {
  const std::int64_t pixels = std::int64_t{info_.width} * info_.height;
  const std::uint64_t claimed =
      png_get_rowbytes(png_, png_info_) * static_cast<std::uint64_t>(info_.height);
  const bool too_large = pixels > limits.pixels;
  if (!too_large && claimed <= bytes_.size() * kMostBytesPerByte) return;
  finish();
  if (too_large) {
    fail<DataError>(
        "[decode_png] {}: {}x{} is {} pixels, above the limit of {} (DecodeLimits::pixels)", label_,
        info_.width, info_.height, pixels, limits.pixels);
  }
  fail<DataError>("[decode_png] {}: {} bytes cannot hold the {}x{} pixels that the header claims",
                  label_, bytes_.size(), info_.width, info_.height);
}

void PngDecoder::check_end() const {
  constexpr std::size_t kAround = 12;  // length, name and checksum of a chunk
  for (std::size_t at = kSignatureBytes; bytes_.size() - at >= kAround;) {
    if (std::memcmp(bytes_.data() + at + 4, "IEND", 4) == 0) return;
    const std::size_t length = big_endian(bytes_.data() + at);
    if (length > bytes_.size() - at - kAround) break;
    at += length + kAround;
  }
  fail<DataError>("[decode_png] {}: cut off: no end chunk in {} bytes", label_, bytes_.size());
}

DecodedPart PngDecoder::start(const DecodeOptions& options, const DecodedPart& part) {
  check_end();
  region_ = options.region.value_or(whole(info_));
  color_mode_ = options.color_mode;
  next_row_ = 0;
  guarded([this] { choose_conversions(); });
  file_channels_ = png_get_channels(png_, png_info_);
  const std::size_t row_bytes = png_get_rowbytes(png_, png_info_);
  pixels_.resize(info_.progressive ? row_bytes * static_cast<std::size_t>(info_.height)
                                   : row_bytes);
  if (info_.progressive) {
    row_pointers_.resize(static_cast<std::size_t>(info_.height));
    for (std::size_t y = 0; y < row_pointers_.size(); ++y) {
      row_pointers_[y] = pixels_.data() + row_bytes * y;
    }
    guarded([this] {
      png_read_image(png_, row_pointers_.data());
      png_read_end(png_, nullptr);
    });
  }
  return part;
}

// Rows of bytes: grey (if requested and the file is grey), colour, or colour with alpha.
void PngDecoder::choose_conversions() {
  const int type = png_get_color_type(png_, png_info_);
  const bool grey = type == PNG_COLOR_TYPE_GRAY || type == PNG_COLOR_TYPE_GRAY_ALPHA;
  png_set_strip_16(png_);
  if (type == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
  if (grey && info_.bits < 8) png_set_expand_gray_1_2_4_to_8(png_);
  const bool transparent = png_get_valid(png_, png_info_, PNG_INFO_tRNS) != 0;
  if (color_mode_ == ColorMode::Rgba) {
    if (transparent) png_set_tRNS_to_alpha(png_);
    png_set_add_alpha(png_, 0xFF, PNG_FILLER_AFTER);
  } else {
    png_set_strip_alpha(png_);
  }
  if (grey && color_mode_ != ColorMode::Grayscale) png_set_gray_to_rgb(png_);
  png_set_interlace_handling(png_);
  png_read_update_info(png_, png_info_);
}

int PngDecoder::read_rows(std::uint8_t* const* rows, int count) {
  for (int i = 0; i < count; ++i) {
    if (info_.progressive) {
      copy_region(row_pointers_[static_cast<std::size_t>(region_.y + next_row_)], rows[i]);
      ++next_row_;
      continue;
    }
    const int wanted = next_row_ < region_.y ? region_.y : next_row_;
    guarded([this, wanted] {
      while (next_row_ <= wanted) {
        png_read_row(png_, pixels_.data(), nullptr);
        ++next_row_;
      }
      // Checks the checksums after the last row.
      if (next_row_ == info_.height) png_read_end(png_, nullptr);
    });
    copy_region(pixels_.data(), rows[i]);
  }
  return count;
}

void PngDecoder::copy_region(const std::uint8_t* from, std::uint8_t* to) const {
  const auto width = static_cast<std::size_t>(region_.width);
  from += static_cast<std::size_t>(region_.x) * file_channels_;
  if (static_cast<int>(file_channels_) == channels_of(color_mode_)) {
    std::memcpy(to, from, width * file_channels_);
    return;
  }
  for (std::size_t x = 0; x < width; ++x, from += file_channels_) {
    to[x] = luminance(from[0], from[1], from[2]);
  }
}

}  // namespace

std::unique_ptr<FormatDecoder> make_png_decoder() {
  return std::make_unique<PngDecoder>();
}

}  // namespace lockstep
