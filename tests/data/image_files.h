// JPEG and PNG files made in memory, by default of a picture that tests can compute.
#pragma once

#include <png.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <jpeglib.h>

namespace lockstep {

using Bytes = std::vector<std::byte>;

// A smooth picture, (height, width, channels), of which JPEG loses little.
inline std::vector<std::uint8_t> smooth_picture(int width, int height, int channels) {
  std::vector<std::uint8_t> pixels;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < channels; ++c) {
        const double value = 128 + 70 * std::sin(0.11 * x + 0.7 * c) * std::cos(0.08 * y - c) +
                             20 * std::sin(0.31 * (x + y) + c);
        pixels.push_back(static_cast<std::uint8_t>(value));
      }
    }
  }
  return pixels;
}

struct JpegKind {
  int channels = 3;    // 1 grey, 3 colour, 4 CMYK
  int horizontal = 2;  // pixels per chroma sample
  int vertical = 2;
  bool progressive = false;
  bool arithmetic = false;
  bool ycck = false;
  int restart_rows = 0;
  int quality = 92;
};

inline Bytes make_jpeg(int width, int height, const JpegKind& kind,
                       std::vector<std::uint8_t> pixels) {
  jpeg_compress_struct library{};
  jpeg_error_mgr errors{};
  library.err = jpeg_std_error(&errors);
  jpeg_create_compress(&library);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&library, &memory, &size);
  library.image_width = static_cast<JDIMENSION>(width);
  library.image_height = static_cast<JDIMENSION>(height);
  library.input_components = kind.channels;
  library.in_color_space = kind.channels == 1   ? JCS_GRAYSCALE
                           : kind.channels == 3 ? JCS_RGB
                                                : JCS_CMYK;
  jpeg_set_defaults(&library);
  if (kind.ycck) jpeg_set_colorspace(&library, JCS_YCCK);
  jpeg_set_quality(&library, kind.quality, TRUE);
  if (kind.channels == 3) {
    library.comp_info[0].h_samp_factor = kind.horizontal;
    library.comp_info[0].v_samp_factor = kind.vertical;
  }
  library.arith_code = kind.arithmetic ? TRUE : FALSE;
  library.restart_in_rows = kind.restart_rows;
  if (kind.progressive) jpeg_simple_progression(&library);
  jpeg_start_compress(&library, TRUE);
  while (library.next_scanline < library.image_height) {
    JSAMPROW row = pixels.data() + std::size_t{library.next_scanline} *
                                       static_cast<std::size_t>(width) *
                                       static_cast<std::size_t>(kind.channels);
    jpeg_write_scanlines(&library, &row, 1);
  }
  jpeg_finish_compress(&library);
  jpeg_destroy_compress(&library);
  const auto* begin = reinterpret_cast<const std::byte*>(memory);
  Bytes bytes(begin, begin + size);
  std::free(memory);
  return bytes;
}

inline Bytes make_jpeg(int width, int height, const JpegKind& kind = {}) {
  return make_jpeg(width, height, kind, smooth_picture(width, height, kind.channels));
}

struct PngKind {
  int color_type = PNG_COLOR_TYPE_RGB;
  int bits = 8;
  bool interlaced = false;
  bool transparent = false;  // the palette's first colour, or the colour of the first pixel
};

// `rows` holds the pixels as PNG packs them: 16 bits are big-endian, below 8 several share a byte.
inline Bytes make_png(int width, int height, const PngKind& kind,
                      const std::vector<std::uint8_t>& rows,
                      const std::vector<png_color>& palette = {}) {
  Bytes bytes;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &bytes,
      [](png_structp p, png_bytep data, std::size_t count) {
        auto& out = *static_cast<Bytes*>(png_get_io_ptr(p));
        const auto* begin = reinterpret_cast<const std::byte*>(data);
        out.insert(out.end(), begin, begin + count);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height),
               kind.bits, kind.color_type, kind.interlaced ? PNG_INTERLACE_ADAM7 : 0, 0, 0);
  if (!palette.empty()) png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  if (kind.transparent) {
    const png_byte alpha = 77;
    png_color_16 color{};
    color.gray = rows[0];
    color.red = rows[0];
    color.green = rows.size() > 1 ? rows[1] : png_uint_16{0};
    color.blue = rows.size() > 2 ? rows[2] : png_uint_16{0};
    const bool is_palette = kind.color_type == PNG_COLOR_TYPE_PALETTE;
    png_set_tRNS(png, info, is_palette ? &alpha : nullptr, is_palette ? 1 : 0,
                 is_palette ? nullptr : &color);
  }
  const std::size_t row_bytes = rows.size() / static_cast<std::size_t>(height);
  std::vector<png_bytep> pointers;
  for (int y = 0; y < height; ++y) {
    pointers.push_back(const_cast<png_bytep>(rows.data()) +
                       row_bytes * static_cast<std::size_t>(y));
  }
  png_set_rows(png, info, pointers.data());
  png_write_png(png, info, PNG_TRANSFORM_IDENTITY, nullptr);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

}  // namespace lockstep
