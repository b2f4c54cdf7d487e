// JPEG files for benchmarks, and a decoder that uses nothing but libjpeg-turbo.
#pragma once

#include <fmt/core.h>
#include <stdio.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <jpeglib.h>

#include "lockstep/base/random.h"
#include "lockstep/data/image/image.h"

namespace lockstep {

inline constexpr std::uint64_t kSeed = 1;
inline constexpr int kMadePictures = 40;

struct File {
  std::string name;
  std::vector<std::byte> bytes;
};

inline std::vector<File> load(const std::string& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string extension = entry.path().extension();
    if (extension == ".jpg" || extension == ".jpeg" || extension == ".JPEG") {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());
  std::vector<File> files;
  for (const auto& path : paths) {
    std::ifstream stream(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    const auto* begin = reinterpret_cast<const std::byte*>(text.data());
    files.push_back({path.string(), {begin, begin + text.size()}});
  }
  return files;
}

// A picture of 500×375 with gradients, edges and noise, at quality 90 and with subsampled chroma,
// as cameras store it.
inline File made_picture(int number) {
  constexpr int kWidth = 500;
  constexpr int kHeight = 375;
  RandomSequence random(kSeed, static_cast<std::uint64_t>(number));
  std::vector<std::uint8_t> pixels(kWidth * kHeight * 3);
  const double slope = random.uniform() * 0.02;
  const double wave = 0.05 + random.uniform() * 0.3;
  for (int y = 0; y < kHeight; ++y) {
    for (int x = 0; x < kWidth; ++x) {
      for (int c = 0; c < 3; ++c) {
        const double edge = (x / 60 + y / 45 + c) % 2 == 0 ? 30 : -30;
        const double value = 128 + 40 * std::sin(wave * x + slope * x * y + c) +
                             30 * std::cos(0.07 * y + c) + edge + 24 * (random.uniform() - 0.5);
        pixels[static_cast<std::size_t>((y * kWidth + x) * 3 + c)] =
            static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
      }
    }
  }
  jpeg_compress_struct library{};
  jpeg_error_mgr errors{};
  library.err = jpeg_std_error(&errors);
  jpeg_create_compress(&library);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&library, &memory, &size);
  library.image_width = kWidth;
  library.image_height = kHeight;
  library.input_components = 3;
  library.in_color_space = JCS_RGB;
  jpeg_set_defaults(&library);
  jpeg_set_quality(&library, 90, TRUE);
  jpeg_start_compress(&library, TRUE);
  while (library.next_scanline < library.image_height) {
    JSAMPROW row = pixels.data() + std::size_t{library.next_scanline} * kWidth * 3;
    jpeg_write_scanlines(&library, &row, 1);
  }
  jpeg_finish_compress(&library);
  jpeg_destroy_compress(&library);
  const auto* begin = reinterpret_cast<const std::byte*>(memory);
  File file{fmt::format("made {}", number), {begin, begin + size}};
  std::free(memory);
  return file;
}

// Decodes regions as the library's examples do: with defaults, row by row into a buffer.
class BareDecoder {
 public:
  BareDecoder() {
    library_.err = jpeg_std_error(&errors_);
    jpeg_create_decompress(&library_);
  }
  ~BareDecoder() { jpeg_destroy_decompress(&library_); }
  BareDecoder(const BareDecoder&) = delete;
  BareDecoder& operator=(const BareDecoder&) = delete;

  void decode(const File& file, const ImageRegion& region) {
    jpeg_mem_src(&library_, reinterpret_cast<const unsigned char*>(file.bytes.data()),
                 static_cast<unsigned long>(file.bytes.size()));
    jpeg_read_header(&library_, TRUE);
    library_.out_color_space = JCS_RGB;
    jpeg_start_decompress(&library_);
    auto offset = static_cast<JDIMENSION>(region.x);
    auto width = static_cast<JDIMENSION>(region.width);
    jpeg_crop_scanline(&library_, &offset, &width);
    jpeg_skip_scanlines(&library_, static_cast<JDIMENSION>(region.y));
    const std::size_t stride = std::size_t{library_.output_width} * 3;
    pixels_.resize(stride * static_cast<std::size_t>(region.height));
    for (int y = 0; y < region.height; ++y) {
      JSAMPROW row = pixels_.data() + stride * static_cast<std::size_t>(y);
      jpeg_read_scanlines(&library_, &row, 1);
    }
    jpeg_abort_decompress(&library_);
  }

 private:
  jpeg_decompress_struct library_{};
  jpeg_error_mgr errors_{};
  std::vector<unsigned char> pixels_;
};

}  // namespace lockstep
