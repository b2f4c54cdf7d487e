// JPEG with libjpeg-turbo. The library reports errors through a callback that must not return; here
// it jumps back to guarded(). Between the two there are only frames of the library and of functions
// without destructors.
#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <new>
#include <string>
#include <utility>
#include <vector>

// jpeglib.h needs FILE and size_t to be declared before it.
#include <jpeglib.h>

#include <jerror.h>

#include "lockstep/base/error.h"
#include "lockstep/data/image/decode.h"

namespace lockstep {

namespace {

// Rows decoded into the scratch buffer at a time.
constexpr int kScratchRows = 16;
// A Huffman-coded block of 64 samples takes at least one bit, so that a file of n bytes has at most
// 512 n pixels.
constexpr std::int64_t kMostPixelsPerByte = 512;

// Warnings about images that are complete nevertheless. All others mean that samples were made up.
bool is_harmless(int warning) {
  return warning == JWRN_EXTRANEOUS_DATA || warning == JWRN_ADOBE_XFORM ||
         warning == JWRN_JFIF_MAJOR || warning == JWRN_NOT_SEQUENTIAL || warning == JWRN_BOGUS_ICC;
}

class JpegDecoder final : public FormatDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder() override { jpeg_destroy_decompress(&library_); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  ImageInfo open(std::span<const std::byte> bytes, std::string_view label,
                 const DecodeLimits& limits) override;
  DecodedPart start(const DecodeOptions& options, const DecodedPart& part) override;
  int read_rows(std::uint8_t* const* rows, int count) override;
  void finish() override { jpeg_abort_decompress(&library_); }

 private:
  static JpegDecoder& of(j_common_ptr library) {
    return *static_cast<JpegDecoder*>(library->client_data);
  }
  static JpegDecoder& of(j_decompress_ptr library) {
    return of(reinterpret_cast<j_common_ptr>(library));
  }
  [[noreturn]] static void on_error(j_common_ptr library);
  static void on_message(j_common_ptr library, int level);
  static void on_progress(j_common_ptr library);
  static boolean on_end_of_bytes(j_decompress_ptr library);
  static void on_skip(j_decompress_ptr library, long count);

  // Runs calls of the library; DataError if one fails, std::bad_alloc if memory runs out.
  template <class Calls>
  void guarded(Calls calls);
  [[noreturn]] void fail_as_data();
  void check_size(const DecodeLimits& limits);
  // Finds the end marker after the header: an image that was cut off has none.
  void check_end() const;
  // Restricts decoding to the requested columns and skips the rows above the requested ones.
  void narrow(int first_column, int columns, int first_row);
  bool loses_edge_columns() const;
  JDIMENSION read_scanlines(JSAMPARRAY rows, JDIMENSION count);
  void convert_cmyk(const std::uint8_t* from, std::uint8_t* to) const;

  jpeg_decompress_struct library_{};
  jpeg_error_mgr errors_{};
  jpeg_source_mgr source_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf jump_{};
  std::array<char, JMSG_LENGTH_MAX> message_{};
  std::span<const std::byte> bytes_;
  std::string_view label_;
  int scans_allowed_ = 0;
  bool out_of_memory_ = false;  // whether that was the library's last error
  // In the rows that the library returns: the columns to skip, and those to keep.
  JDIMENSION extra_columns_ = 0;
  JDIMENSION columns_ = 0;
  int channels_ = 0;
  bool cmyk_ = false;
  std::vector<std::uint8_t> scratch_;
};

template <class Calls>
void JpegDecoder::guarded(Calls calls) {
  if (setjmp(jump_) != 0) fail_as_data();
  calls();
}

JpegDecoder::JpegDecoder() {
  library_.err = jpeg_std_error(&errors_);
  errors_.error_exit = on_error;
  errors_.emit_message = on_message;
  progress_.progress_monitor = on_progress;
  source_.init_source = [](j_decompress_ptr) {};
  source_.term_source = [](j_decompress_ptr) {};
  source_.fill_input_buffer = on_end_of_bytes;
  source_.skip_input_data = on_skip;
  source_.resync_to_restart = jpeg_resync_to_restart;
  library_.client_data = this;
  try {
    guarded([this] { jpeg_create_decompress(&library_); });
  } catch (...) {
    jpeg_destroy_decompress(&library_);
    throw;
  }
}

void JpegDecoder::on_error(j_common_ptr library) {
  JpegDecoder& decoder = of(library);
  decoder.out_of_memory_ = library->err->msg_code == JERR_OUT_OF_MEMORY;
  library->err->format_message(library, decoder.message_.data());
  std::longjmp(decoder.jump_, 1);
}

void JpegDecoder::on_message(j_common_ptr library, int level) {
  if (level < 0 && !is_harmless(library->err->msg_code)) on_error(library);
}

void JpegDecoder::on_progress(j_common_ptr library) {
  JpegDecoder& decoder = of(library);
  if (decoder.library_.input_scan_number > decoder.scans_allowed_) {
    std::snprintf(decoder.message_.data(), decoder.message_.size(), "more than %d scans",
                  decoder.scans_allowed_);
    std::longjmp(decoder.jump_, 1);
  }
}

// All bytes are available from the start: if the library needs more, the file is too short.
boolean JpegDecoder::on_end_of_bytes(j_decompress_ptr library) {
  library->err->msg_code = JWRN_JPEG_EOF;
  on_error(reinterpret_cast<j_common_ptr>(library));
}

void JpegDecoder::on_skip(j_decompress_ptr library, long count) {
  if (count <= 0) return;
  if (static_cast<std::size_t>(count) > library->src->bytes_in_buffer) {
    library->src->next_input_byte += library->src->bytes_in_buffer;
    library->src->bytes_in_buffer = 0;
    on_end_of_bytes(library);
  }
  library->src->next_input_byte += count;
  library->src->bytes_in_buffer -= static_cast<std::size_t>(count);
}

void JpegDecoder::fail_as_data() {
  const std::size_t position = bytes_.size() - source_.bytes_in_buffer;
  jpeg_abort_decompress(&library_);
  if (std::exchange(out_of_memory_, false)) throw std::bad_alloc();
  fail<DataError>("[decode_jpeg] {}: {} (at byte {} of {})", label_, message_.data(), position,
                  bytes_.size());
}

ImageInfo JpegDecoder::open(std::span<const std::byte> bytes, std::string_view label,
                            const DecodeLimits& limits) {
  bytes_ = bytes;
  label_ = label;
  scans_allowed_ = limits.scans;
  source_.next_input_byte = reinterpret_cast<const JOCTET*>(bytes.data());
  source_.bytes_in_buffer = bytes.size();
  guarded([this] {
    // The library keeps tables from one image to the next. A file that lacks some must not be
    // decoded with those of another, so every file gets a new state.
    jpeg_destroy_decompress(&library_);
    jpeg_create_decompress(&library_);
    library_.client_data = this;
    library_.src = &source_;
    library_.progress = &progress_;
    jpeg_read_header(&library_, TRUE);
  });
  check_size(limits);
  return {.format = ImageFormat::Jpeg,
          .width = static_cast<int>(library_.image_width),
          .height = static_cast<int>(library_.image_height),
          .channels = library_.num_components,
          .bits = library_.data_precision,
          .progressive = library_.progressive_mode != FALSE};
}

void JpegDecoder::check_size(const DecodeLimits& limits) {
  const std::int64_t pixels = std::int64_t{library_.image_width} * library_.image_height;
  const std::int64_t possible = static_cast<std::int64_t>(bytes_.size()) * kMostPixelsPerByte;
  if (pixels <= limits.pixels && (library_.arith_code || pixels <= possible)) return;
  const JDIMENSION width = library_.image_width;
  const JDIMENSION height = library_.image_height;
  jpeg_abort_decompress(&library_);
  if (pixels > limits.pixels) {
    fail<DataError>(
        "[decode_jpeg] {}: {}x{} is {} pixels, above the limit of {} (DecodeLimits::pixels)",
        label_, width, height, pixels, limits.pixels);
  }
  fail<DataError>("[decode_jpeg] {}: {} bytes cannot hold the {}x{} pixels that the header claims",
                  label_, bytes_.size(), width, height);
}

void JpegDecoder::check_end() const {
  const auto* begin = reinterpret_cast<const JOCTET*>(bytes_.data());
  const JOCTET* data = source_.next_input_byte;
  for (const JOCTET* at = begin + bytes_.size(); at - data >= 2; --at) {
    if (at[-1] == JPEG_EOI && at[-2] == 0xFF) return;
  }
  fail<DataError>("[decode_jpeg] {}: cut off: no end marker in {} bytes", label_, bytes_.size());
}

DecodedPart JpegDecoder::start(const DecodeOptions& options, const DecodedPart& part) {
  check_end();
  const ImageRegion region =
      options.region.value_or(ImageRegion{.x = 0, .y = 0, .width = 1, .height = 1});
  channels_ = channels_of(options.color_mode);
  cmyk_ = library_.jpeg_color_space == JCS_CMYK || library_.jpeg_color_space == JCS_YCCK;
  library_.out_color_space = cmyk_                                        ? JCS_CMYK
                             : options.color_mode == ColorMode::Grayscale ? JCS_GRAYSCALE
                             : options.color_mode == ColorMode::Rgb       ? JCS_EXT_RGB
                                                                          : JCS_EXT_RGBA;
  library_.scale_num = 1;
  library_.scale_denom = static_cast<unsigned>(part.scale);
  library_.dct_method = options.fast_dct ? JDCT_IFAST : JDCT_ISLOW;
  // Smoothing is for partially received images, and would read beyond the edges of the region.
  library_.do_block_smoothing = FALSE;
  columns_ = static_cast<JDIMENSION>(part.width);
  guarded([this, &region, &part] {
    jpeg_start_decompress(&library_);
    narrow(region.x / part.scale, part.width, region.y / part.scale);
  });
  DecodedPart actual = part;
  if (options.wider_columns) {
    actual.left += extra_columns_;
    actual.width = static_cast<int>(library_.output_width);
    columns_ = library_.output_width;
    extra_columns_ = 0;
  }
  if (cmyk_ || columns_ != library_.output_width) {
    scratch_.resize(std::size_t{library_.output_width} *
                    static_cast<std::size_t>(library_.output_components) * kScratchRows);
  }
  return actual;
}

// Subsampled chroma is interpolated between neighbouring columns, and the outermost columns of a
// region lack a neighbour.
bool JpegDecoder::loses_edge_columns() const {
  for (int i = 0; i < library_.num_components; ++i) {
    const jpeg_component_info& component = library_.comp_info[i];
    if (component.h_samp_factor * component.DCT_scaled_size <
        library_.max_h_samp_factor * library_.min_DCT_scaled_size) {
      return true;
    }
  }
  return false;
}

void JpegDecoder::narrow(int first_column, int columns, int first_row) {
  extra_columns_ = 0;
  if (static_cast<JDIMENSION>(columns) < library_.output_width) {
    const int margin = loses_edge_columns() ? 2 : 0;
    const int left = std::max(0, first_column - margin);
    const int right =
        std::min(first_column + columns + margin, static_cast<int>(library_.output_width));
    auto offset = static_cast<JDIMENSION>(left);
    auto width = static_cast<JDIMENSION>(right - left);
    jpeg_crop_scanline(&library_, &offset, &width);
    extra_columns_ = static_cast<JDIMENSION>(first_column) - offset;
  }
  if (first_row > 0) jpeg_skip_scanlines(&library_, static_cast<JDIMENSION>(first_row));
}

// A call of the library may return fewer rows than requested: those of one row of samples.
JDIMENSION JpegDecoder::read_scanlines(JSAMPARRAY rows, JDIMENSION count) {
  JDIMENSION done = 0;
  while (done < count) {
    const JDIMENSION more = jpeg_read_scanlines(&library_, rows + done, count - done);
    if (more == 0) break;
    done += more;
  }
  return done;
}

int JpegDecoder::read_rows(std::uint8_t* const* rows, int count) {
  JDIMENSION done = 0;
  const bool direct = !cmyk_ && columns_ == library_.output_width;
  if (direct) {
    guarded([this, rows, count, &done] {
      done = read_scanlines(const_cast<JSAMPARRAY>(rows), static_cast<JDIMENSION>(count));
    });
  } else {
    std::array<JSAMPROW, kScratchRows> scratch;
    const std::size_t row_bytes =
        std::size_t{library_.output_width} * static_cast<std::size_t>(library_.output_components);
    for (int i = 0; i < kScratchRows; ++i) scratch[i] = scratch_.data() + row_bytes * i;
    guarded([this, &scratch, count, &done] {
      done = read_scanlines(scratch.data(), static_cast<JDIMENSION>(std::min(count, kScratchRows)));
    });
    for (JDIMENSION i = 0; i < done; ++i) {
      const std::uint8_t* wanted =
          scratch[i] +
          std::size_t{extra_columns_} * static_cast<std::size_t>(library_.output_components);
      if (cmyk_) {
        convert_cmyk(wanted, rows[i]);
      } else {
        std::memcpy(rows[i], wanted, std::size_t{columns_} * static_cast<std::size_t>(channels_));
      }
    }
  }
  ensure(done > 0, "[decode_jpeg] {}: libjpeg returned no row after row {}", label_,
         library_.output_scanline);
  return static_cast<int>(done);
}

// Treats CMYK as ink on white paper. Adobe's programs store it inverted.
void JpegDecoder::convert_cmyk(const std::uint8_t* from, std::uint8_t* to) const {
  const int flip = library_.saw_Adobe_marker ? 0 : 255;
  for (JDIMENSION x = 0; x < columns_; ++x, from += 4, to += channels_) {
    const int k = from[3] ^ flip;
    const int red = (from[0] ^ flip) * k / 255;
    const int green = (from[1] ^ flip) * k / 255;
    const int blue = (from[2] ^ flip) * k / 255;
    if (channels_ == 1) {
      to[0] = luminance(red, green, blue);
      continue;
    }
    to[0] = static_cast<std::uint8_t>(red);
    to[1] = static_cast<std::uint8_t>(green);
    to[2] = static_cast<std::uint8_t>(blue);
    if (channels_ == 4) to[3] = 255;
  }
}

}  // namespace

std::unique_ptr<FormatDecoder> make_jpeg_decoder() {
  return std::make_unique<JpegDecoder>();
}

}  // namespace lockstep
