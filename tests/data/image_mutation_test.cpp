// Thousands of damaged files: each gives a picture or a DataError. Under the sanitizers this shows
// that nothing is accessed out of bounds and nothing leaks.
#include <gtest/gtest.h>

#include <algorithm>

#include "data/image_files.h"
#include "lockstep/data/image/reader.h"

namespace lockstep {
namespace {

// Changes, removes or repeats some bytes, or truncates the file.
Bytes damaged(const Bytes& file, std::uint64_t number) {
  RandomSequence random(17, number);
  Bytes bytes = file;
  const std::uint64_t changes = 1 + random.below(6);
  for (std::uint64_t i = 0; i < changes && !bytes.empty(); ++i) {
    // Half of the damage goes to the header, although it is short.
    const std::uint64_t reach =
        random.below(2) == 0 ? std::min<std::uint64_t>(bytes.size(), 700) : bytes.size();
    const auto at = static_cast<std::ptrdiff_t>(random.below(reach));
    const auto count = std::min<std::ptrdiff_t>(static_cast<std::ptrdiff_t>(1 + random.below(16)),
                                                static_cast<std::ptrdiff_t>(bytes.size()) - at);
    switch (random.below(8)) {
      case 0:
        bytes.erase(bytes.begin() + at, bytes.begin() + at + count);
        break;
      case 1: {
        const Bytes copy(bytes.begin() + at, bytes.begin() + at + count);
        bytes.insert(bytes.begin() + at, copy.begin(), copy.end());
        break;
      }
      case 2:
        bytes[static_cast<std::size_t>(at)] = std::byte{0xFF};
        break;
      case 3:
        bytes[static_cast<std::size_t>(at)] ^= static_cast<std::byte>(1 << random.below(8));
        break;
      default:
        bytes[static_cast<std::size_t>(at)] = static_cast<std::byte>(random.below(256));
    }
  }
  if (random.below(16) == 0) bytes.resize(random.below(bytes.size() + 1));
  return bytes;
}

// Corrects PNG's checksums, which would otherwise reject most of the damage at once.
void mend_checksums(Bytes& png) {
  std::size_t at = 8;
  while (png.size() >= at + 12) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      length = length << 8 | std::to_integer<std::size_t>(png[at + i]);
    }
    if (length > png.size() - at - 12) return;
    std::uint32_t crc = 0xFFFFFFFF;
    for (std::size_t i = at + 4; i < at + 8 + length; ++i) {
      crc ^= std::to_integer<std::uint32_t>(png[i]);
      for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320 : 0);
    }
    crc = ~crc;
    for (std::size_t i = 0; i < 4; ++i) {
      png[at + 8 + length + i] = static_cast<std::byte>(crc >> (24 - 8 * i));
    }
    at += length + 12;
  }
}

struct Outcomes {
  int pictures = 0;
  int errors = 0;
};

// Alternates between the decoder and the reader, and between colour modes.
Outcomes try_all(const std::vector<Bytes>& files, int mutations, bool mend) {
  const DecodeLimits limits{.pixels = 1 << 20, .scans = 20};
  const ColorMode modes[] = {ColorMode::Grayscale, ColorMode::Rgb, ColorMode::Rgba};
  ImageDecoder decoder(limits);
  std::vector<ImageReader> readers;
  for (const ColorMode mode : modes) {
    readers.emplace_back(ImageReaderOptions{.height = 24,
                                            .width = 20,
                                            .color_mode = mode,
                                            .crop = ImageCrop::Random,
                                            .mirror_probability = 0.5f,
                                            .antialias = true,
                                            .limits = limits});
  }
  std::vector<std::byte> sample(24 * 20 * 4 * sizeof(float));
  Outcomes outcomes;
  for (std::size_t f = 0; f < files.size(); ++f) {
    for (int i = 0; i < mutations; ++i) {
      Bytes bytes = damaged(files[f], f * 100000 + static_cast<std::uint64_t>(i));
      if (mend) mend_checksums(bytes);
      const auto turn = static_cast<std::size_t>(i % 3);
      try {
        if (i % 2 == 0) {
          const Tensor image = decoder.decode(bytes, "damaged", {.color_mode = modes[turn]});
          EXPECT_EQ(image.shape()[2], channels_of(modes[turn]));
        } else {
          RandomSequence random(23, static_cast<std::uint64_t>(i));
          ImageReader& reader = readers[turn];
          reader.read(bytes, "damaged", random, std::span(sample).first(reader.sample_bytes()));
        }
        ++outcomes.pictures;
      } catch (const DataError& error) {
        EXPECT_NE(std::string_view(error.what()).find("damaged"), std::string_view::npos);
        ++outcomes.errors;
      }
    }
  }
  return outcomes;
}

TEST(DamagedImages, AJpegIsAPictureOrADataError) {
  const Outcomes outcomes = try_all(
      {make_jpeg(75, 53), make_jpeg(75, 53, {.horizontal = 1, .vertical = 1}),
       make_jpeg(75, 53, {.horizontal = 2, .vertical = 1, .restart_rows = 1}),
       make_jpeg(75, 53, {.progressive = true}), make_jpeg(75, 53, {.arithmetic = true}),
       make_jpeg(75, 53, {.channels = 1}), make_jpeg(40, 33, {.channels = 4, .ycck = true})},
      500, false);
  EXPECT_GT(outcomes.pictures, 100);
  EXPECT_GT(outcomes.errors, 500);
}

TEST(DamagedImages, APngIsAPictureOrADataError) {
  const std::vector<png_color> palette = {{10, 20, 30}, {200, 100, 50}, {1, 2, 3}};
  std::vector<std::uint8_t> indices(31 * 23);
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<std::uint8_t>(i % 3);
  const std::vector<Bytes> files = {
      make_png(31, 23, {}, smooth_picture(31, 23, 3)),
      make_png(31, 23, {.color_type = PNG_COLOR_TYPE_RGBA, .bits = 16}, smooth_picture(62, 23, 4)),
      make_png(31, 23, {.color_type = PNG_COLOR_TYPE_GRAY_ALPHA, .interlaced = true},
               smooth_picture(31, 23, 2)),
      make_png(31, 23, {.color_type = PNG_COLOR_TYPE_PALETTE, .transparent = true}, indices,
               palette),
      make_png(31, 23, {.color_type = PNG_COLOR_TYPE_GRAY, .bits = 2},
               {std::vector<std::uint8_t>(8 * 23, 0x1B)})};
  const Outcomes plain = try_all(files, 150, false);
  const Outcomes mended = try_all(files, 400, true);
  EXPECT_GT(plain.errors, 300);
  EXPECT_GT(mended.pictures, 50);
  EXPECT_GT(mended.errors, 300);
}

}  // namespace
}  // namespace lockstep
