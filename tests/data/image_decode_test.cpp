#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "data/image_files.h"
#include "lockstep/data/image/decode.h"

namespace lockstep {
namespace {

std::vector<std::uint8_t> decoded(const Bytes& file, const DecodeOptions& options = {}) {
  const Tensor image = ImageDecoder().decode(file, "test", options);
  const auto values = image.values<std::uint8_t>();
  return {values.begin(), values.end()};
}

int largest_difference(const std::vector<std::uint8_t>& a, const std::vector<std::uint8_t>& b) {
  EXPECT_EQ(a.size(), b.size());
  int largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]));
  }
  return largest;
}

std::string decode_rejection(const Bytes& file, const DecodeOptions& options = {},
                             const DecodeLimits& limits = {}) {
  try {
    ImageDecoder decoder(limits);
    decoder.decode(file, "photos/cat", options);
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::uint8_t> cropped(const std::vector<std::uint8_t>& pixels, int width, int channels,
                                  const ImageRegion& region) {
  std::vector<std::uint8_t> out;
  for (int y = region.y; y < region.y + region.height; ++y) {
    const auto begin = pixels.begin() + (std::ptrdiff_t{y} * width + region.x) * channels;
    out.insert(out.end(), begin, begin + std::ptrdiff_t{region.width} * channels);
  }
  return out;
}

const std::vector<JpegKind> kColorKinds = {
    {.horizontal = 1, .vertical = 1},
    {.horizontal = 2, .vertical = 1},
    {.horizontal = 1, .vertical = 2},
    {.horizontal = 2, .vertical = 2},
    {.horizontal = 4, .vertical = 1},
    {.progressive = true},
    {.horizontal = 1, .vertical = 1, .progressive = true},
    {.arithmetic = true},
    {.restart_rows = 1},
};

TEST(ImageDecode, HeadersAreReadWithoutDecoding) {
  const ImageInfo jpeg = read_image_info(make_jpeg(83, 61, {.progressive = true}), "a");
  EXPECT_EQ(jpeg.format, ImageFormat::Jpeg);
  EXPECT_EQ(jpeg.width, 83);
  EXPECT_EQ(jpeg.height, 61);
  EXPECT_EQ(jpeg.channels, 3);
  EXPECT_TRUE(jpeg.progressive);
  const ImageInfo png =
      read_image_info(make_png(5, 4, {.color_type = PNG_COLOR_TYPE_GRAY_ALPHA, .bits = 16},
                               std::vector<std::uint8_t>(5 * 4 * 4)),
                      "b");
  EXPECT_EQ(png.format, ImageFormat::Png);
  EXPECT_EQ(png.width, 5);
  EXPECT_EQ(png.height, 4);
  EXPECT_EQ(png.channels, 2);
  EXPECT_EQ(png.bits, 16);
}

TEST(ImageDecode, JpegsDecodeCloseToTheOriginal) {
  const auto picture = smooth_picture(83, 61, 3);
  for (const JpegKind& kind : kColorKinds) {
    const auto pixels = decoded(make_jpeg(83, 61, kind));
    EXPECT_LE(largest_difference(pixels, picture), 60);
    double sum = 0;
    for (std::size_t i = 0; i < pixels.size(); ++i) sum += std::abs(pixels[i] - picture[i]);
    EXPECT_LT(sum / static_cast<double>(pixels.size()), 6)
        << kind.horizontal << kind.vertical << kind.progressive << kind.arithmetic;
  }
}

TEST(ImageDecode, JpegsAreDecodedInEveryColorMode) {
  const Bytes gray = make_jpeg(40, 30, {.channels = 1});
  const auto one = decoded(gray, {.color_mode = ColorMode::Grayscale});
  const auto three = decoded(gray);
  const auto four = decoded(gray, {.color_mode = ColorMode::Rgba});
  ASSERT_EQ(one.size(), 1200u);
  for (std::size_t i = 0; i < one.size(); ++i) {
    for (std::size_t c = 0; c < 3; ++c) {
      ASSERT_EQ(three[3 * i + c], one[i]);
      ASSERT_EQ(four[4 * i + c], one[i]);
    }
    ASSERT_EQ(four[4 * i + 3], 255);
  }
  const Bytes color = make_jpeg(40, 30, {.horizontal = 1, .vertical = 1, .quality = 100});
  const auto rgb = decoded(color);
  const auto luma = decoded(color, {.color_mode = ColorMode::Grayscale});
  for (std::size_t i = 0; i < luma.size(); ++i) {
    ASSERT_NEAR(luma[i], 0.299 * rgb[3 * i] + 0.587 * rgb[3 * i + 1] + 0.114 * rgb[3 * i + 2], 2.5);
  }
}

TEST(ImageDecode, CmykBecomesRgb) {
  for (const bool ycck : {false, true}) {
    // libjpeg marks its files as Adobe's, which store inks inverted: 255 is no ink.
    std::vector<std::uint8_t> inks;
    for (int i = 0; i < 32 * 32; ++i) inks.insert(inks.end(), {255, 128, 0, 200});
    const Bytes file = make_jpeg(32, 32, {.channels = 4, .ycck = ycck, .quality = 100}, inks);
    EXPECT_EQ(read_image_info(file, "inks").channels, 4);
    const auto rgb = decoded(file);
    EXPECT_NEAR(rgb[0], 200, 3);
    EXPECT_NEAR(rgb[1], 128 * 200 / 255, 3);
    EXPECT_NEAR(rgb[2], 0, 3);
    const auto rgba = decoded(file, {.color_mode = ColorMode::Rgba});
    EXPECT_EQ(rgba[3], 255);
    EXPECT_NEAR(decoded(file, {.color_mode = ColorMode::Grayscale})[0], 0.299 * 200 + 0.587 * 100,
                4);
  }
}

// The result must not depend on the chroma at the region's edges, on the rows above it or on the
// columns that libjpeg adds.
TEST(ImageDecode, ARegionIsTheCropOfTheWholePicture) {
  constexpr int kWidth = 83;
  constexpr int kHeight = 61;
  for (const JpegKind& kind : kColorKinds) {
    const Bytes file = make_jpeg(kWidth, kHeight, kind);
    const auto all = decoded(file);
    ImageDecoder decoder;
    for (int x = 0; x < kWidth; x += 5) {
      for (int y = 0; y < kHeight; y += 3) {
        for (const int size : {1, 2, 9, 33, 100}) {
          const ImageRegion region{.x = x,
                                   .y = y,
                                   .width = std::min(size, kWidth - x),
                                   .height = std::min(size + 1, kHeight - y)};
          const Tensor part = decoder.decode(file, "test", {.region = region});
          const auto values = part.values<std::uint8_t>();
          ASSERT_EQ(
              largest_difference({values.begin(), values.end()}, cropped(all, kWidth, 3, region)),
              0)
              << kind.horizontal << "x" << kind.vertical << " progressive " << kind.progressive
              << " at " << x << "," << y << " size " << region.width << "x" << region.height;
        }
      }
    }
  }
}

TEST(ImageDecode, AScaledRegionIsTheCropOfTheScaledPicture) {
  constexpr int kWidth = 150;
  constexpr int kHeight = 131;
  for (const JpegKind& kind : kColorKinds) {
    const Bytes file = make_jpeg(kWidth, kHeight, kind);
    ImageDecoder decoder;
    for (const int scale : {2, 4, 8}) {
      const int wide = (kWidth + scale - 1) / scale;
      const Tensor whole_part = decoder.decode(
          file, "whole", {.at_least_width = kWidth / scale, .at_least_height = kHeight / scale});
      ASSERT_EQ(whole_part.shape(), Shape({(kHeight + scale - 1) / scale, wide, 3}));
      const auto all = whole_part.values<std::uint8_t>();
      for (const ImageRegion region : {ImageRegion{.x = 17, .y = 23, .width = 90, .height = 64},
                                       ImageRegion{.x = 64, .y = 0, .width = 86, .height = 131},
                                       ImageRegion{.x = 0, .y = 61, .width = 150, .height = 70}}) {
        const DecodeOptions options{.region = region,
                                    .at_least_width = region.width / scale,
                                    .at_least_height = region.height / scale};
        decoder.open(file, "part");
        const DecodedPart part = decoder.start(options);
        ASSERT_EQ(part.scale, scale);
        const ImageRegion scaled{.x = region.x / scale,
                                 .y = region.y / scale,
                                 .width = part.width,
                                 .height = part.height};
        EXPECT_DOUBLE_EQ(scaled.x + part.left, static_cast<double>(region.x) / scale);
        EXPECT_DOUBLE_EQ(scaled.y + part.top, static_cast<double>(region.y) / scale);
        EXPECT_GE(part.left + part.region_width, 1);
        EXPECT_LE(part.left + part.region_width, part.width);
        const Tensor pixels = decoder.decode(file, "part", options);
        const auto values = pixels.values<std::uint8_t>();
        EXPECT_EQ(largest_difference({values.begin(), values.end()},
                                     cropped({all.begin(), all.end()}, wide, 3, scaled)),
                  0)
            << kind.horizontal << "x" << kind.vertical << " progressive " << kind.progressive
            << " 1/" << scale << " at " << region.x << "," << region.y;
      }
    }
  }
}

TEST(ImageDecode, ScaledPixelsAreMeansOfThePicture) {
  const Bytes file = make_jpeg(160, 128, {.horizontal = 1, .vertical = 1, .quality = 100});
  const auto all = decoded(file);
  for (const int scale : {2, 4, 8}) {
    const auto small =
        decoded(file, {.at_least_width = 160 / scale, .at_least_height = 128 / scale});
    ASSERT_EQ(small.size(), all.size() / static_cast<std::size_t>(scale * scale));
    double sum = 0;
    for (int y = 0; y < 128 / scale; ++y) {
      for (int x = 0; x < 160 / scale; ++x) {
        for (int c = 0; c < 3; ++c) {
          double mean = 0;
          for (int i = 0; i < scale * scale; ++i) {
            mean += all[static_cast<std::size_t>(
                ((y * scale + i / scale) * 160 + x * scale + i % scale) * 3 + c)];
          }
          mean /= scale * scale;
          sum += std::abs(mean - small[static_cast<std::size_t>((y * (160 / scale) + x) * 3 + c)]);
        }
      }
    }
    EXPECT_LT(sum / static_cast<double>(small.size()), 1.5) << scale;
  }
}

TEST(ImageDecode, TheScaleIsTheLargestThatKeepsTheTargetSize) {
  const ImageInfo info{.format = ImageFormat::Jpeg, .width = 900, .height = 900, .channels = 3};
  const auto scale_for = [&info](int size) {
    return part_of(info, {.region = ImageRegion{.x = 1, .y = 1, .width = size, .height = 900 - 1},
                          .at_least_width = 100,
                          .at_least_height = 100})
        .scale;
  };
  EXPECT_EQ(scale_for(199), 1);
  EXPECT_EQ(scale_for(200), 2);
  EXPECT_EQ(scale_for(399), 2);
  EXPECT_EQ(scale_for(400), 4);
  EXPECT_EQ(scale_for(800), 8);
  EXPECT_EQ(part_of(info, {}).scale, 1);
}

TEST(ImageDecode, ARegionOutsideThePictureIsRefused) {
  const Bytes file = make_jpeg(20, 20);
  for (const ImageRegion region : {ImageRegion{.x = 10, .y = 0, .width = 11, .height = 5},
                                   ImageRegion{.x = -1, .y = 0, .width = 5, .height = 5},
                                   ImageRegion{.x = 0, .y = 20, .width = 5, .height = 1},
                                   ImageRegion{.x = 0, .y = 0, .width = 0, .height = 1}}) {
    EXPECT_THROW(decoded(file, {.region = region}), UsageError);
  }
}

TEST(ImageDecode, EveryKindOfPngIsDecoded) {
  constexpr int kWidth = 13;
  constexpr int kHeight = 9;
  const auto rgb = smooth_picture(kWidth, kHeight, 3);
  const auto rgba = smooth_picture(kWidth, kHeight, 4);
  const auto gray = smooth_picture(kWidth, kHeight, 1);
  const auto two = smooth_picture(kWidth, kHeight, 2);
  for (const bool interlaced : {false, true}) {
    const auto png = [interlaced](int type, int bits, const std::vector<std::uint8_t>& rows) {
      return make_png(kWidth, kHeight, {.color_type = type, .bits = bits, .interlaced = interlaced},
                      rows);
    };
    EXPECT_EQ(decoded(png(PNG_COLOR_TYPE_RGB, 8, rgb)), rgb);
    EXPECT_EQ(decoded(png(PNG_COLOR_TYPE_GRAY, 8, gray), {.color_mode = ColorMode::Grayscale}),
              gray);
    EXPECT_EQ(decoded(png(PNG_COLOR_TYPE_RGBA, 8, rgba), {.color_mode = ColorMode::Rgba}), rgba);

    // Of 16 bits, the upper byte is kept.
    std::vector<std::uint8_t> sixteen;
    for (const std::uint8_t value : rgb) sixteen.insert(sixteen.end(), {value, 0xFE});
    EXPECT_EQ(decoded(png(PNG_COLOR_TYPE_RGB, 16, sixteen)), rgb);

    // Alpha is dropped, not blended; added alpha is opaque; grey is repeated.
    const auto dropped = decoded(png(PNG_COLOR_TYPE_RGBA, 8, rgba));
    const auto added = decoded(png(PNG_COLOR_TYPE_RGB, 8, rgb), {.color_mode = ColorMode::Rgba});
    const auto from_two =
        decoded(png(PNG_COLOR_TYPE_GRAY_ALPHA, 8, two), {.color_mode = ColorMode::Rgba});
    const auto gray_of_two =
        decoded(png(PNG_COLOR_TYPE_GRAY_ALPHA, 8, two), {.color_mode = ColorMode::Grayscale});
    const auto luma =
        decoded(png(PNG_COLOR_TYPE_RGB, 8, rgb), {.color_mode = ColorMode::Grayscale});
    for (std::size_t i = 0; i < gray.size(); ++i) {
      for (std::size_t c = 0; c < 3; ++c) {
        ASSERT_EQ(dropped[3 * i + c], rgba[4 * i + c]);
        ASSERT_EQ(added[4 * i + c], rgb[3 * i + c]);
        ASSERT_EQ(from_two[4 * i + c], two[2 * i]);
      }
      ASSERT_EQ(added[4 * i + 3], 255);
      ASSERT_EQ(from_two[4 * i + 3], two[2 * i + 1]);
      ASSERT_EQ(gray_of_two[i], two[2 * i]);
      ASSERT_NEAR(luma[i], 0.299 * rgb[3 * i] + 0.587 * rgb[3 * i + 1] + 0.114 * rgb[3 * i + 2],
                  0.51);
    }

    // One, two and four bits of grey are scaled to the full range.
    for (const int bits : {1, 2, 4}) {
      const int row_bytes = (kWidth * bits + 7) / 8;
      std::vector<std::uint8_t> packed(static_cast<std::size_t>(row_bytes * kHeight), 0xB4);
      const auto wide =
          decoded(png(PNG_COLOR_TYPE_GRAY, bits, packed), {.color_mode = ColorMode::Grayscale});
      const int most = (1 << bits) - 1;
      for (int x = 0; x < 8 / bits; ++x) {
        const int stored = 0xB4 >> (8 - bits * (x + 1)) & most;
        ASSERT_EQ(wide[static_cast<std::size_t>(x)], stored * 255 / most);
      }
    }
  }
}

TEST(ImageDecode, PalettesAreDecodedWithAndWithoutTransparency) {
  const std::vector<png_color> palette = {{10, 20, 30}, {200, 100, 50}, {1, 2, 3}};
  const std::vector<std::uint8_t> rows = {0, 1, 2, 1};
  for (const bool transparent : {false, true}) {
    const Bytes file = make_png(
        2, 2, {.color_type = PNG_COLOR_TYPE_PALETTE, .transparent = transparent}, rows, palette);
    EXPECT_EQ(read_image_info(file, "palette").channels, 3);
    EXPECT_EQ(decoded(file),
              (std::vector<std::uint8_t>{10, 20, 30, 200, 100, 50, 1, 2, 3, 200, 100, 50}));
    const auto rgba = decoded(file, {.color_mode = ColorMode::Rgba});
    EXPECT_EQ(rgba[3], transparent ? 77 : 255);
    EXPECT_EQ(rgba[7], 255);
    EXPECT_EQ(decoded(file, {.color_mode = ColorMode::Grayscale})[1],
              static_cast<std::uint8_t>(0.299 * 200 + 0.587 * 100 + 0.114 * 50 + 0.5));
  }
}

TEST(ImageDecode, ATransparentColorOfAPngBecomesAlpha) {
  const auto rgb = smooth_picture(6, 5, 3);
  const Bytes file = make_png(6, 5, {.transparent = true}, rgb);
  EXPECT_EQ(decoded(file), rgb);
  const auto rgba = decoded(file, {.color_mode = ColorMode::Rgba});
  EXPECT_EQ(rgba[3], 0);
  EXPECT_EQ(rgba[7], 255);
}

TEST(ImageDecode, ARegionOfAPngIsTheCropOfIt) {
  const auto rgb = smooth_picture(31, 23, 3);
  const ImageRegion region{.x = 7, .y = 5, .width = 11, .height = 13};
  for (const bool interlaced : {false, true}) {
    const Bytes file = make_png(31, 23, {.interlaced = interlaced}, rgb);
    // PNG cannot be decoded at a smaller scale, so the target size changes nothing.
    EXPECT_EQ(decoded(file, {.region = region, .at_least_width = 2, .at_least_height = 2}),
              cropped(rgb, 31, 3, region));
  }
}

TEST(ImageDecode, ErrorsNameTheFileTheOffsetAndTheReason) {
  Bytes file = make_jpeg(64, 48);
  const std::size_t size = file.size();
  file.resize(size / 2);
  const std::string cut = decode_rejection(file);
  EXPECT_NE(cut.find("photos/cat"), std::string::npos) << cut;
  EXPECT_NE(cut.find("cut off"), std::string::npos) << cut;
  EXPECT_NE(decode_rejection({}).find("photos/cat: the file is empty"), std::string::npos);
  const std::string text = "GIF89a neither";
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  EXPECT_NE(decode_rejection({begin, begin + text.size()}).find("neither"), std::string::npos);

  // Damage in the entropy-coded data: the message holds the library's reason and the offset.
  Bytes damaged = make_jpeg(64, 48, {.quality = 100});
  for (std::size_t i = damaged.size() / 2; i < damaged.size() / 2 + 40; ++i) {
    damaged[i] = std::byte{0xFE};
  }
  const std::string corrupt = decode_rejection(damaged);
  EXPECT_NE(corrupt.find("Corrupt JPEG data"), std::string::npos) << corrupt;
  EXPECT_NE(corrupt.find("(at byte "), std::string::npos) << corrupt;

  Bytes png = make_png(31, 23, {}, smooth_picture(31, 23, 3));
  png[png.size() / 2] ^= std::byte{0x55};
  const std::string checksum = decode_rejection(png);
  EXPECT_NE(checksum.find("[decode_png] photos/cat"), std::string::npos) << checksum;
}

// Even if the wanted region ends long before the cut: whether a file is accepted must not depend on
// a random crop.
TEST(ImageDecode, EveryTruncatedFileIsRefused) {
  const std::vector<Bytes> files = {make_jpeg(64, 48), make_jpeg(64, 48, {.progressive = true}),
                                    make_png(31, 23, {}, smooth_picture(31, 23, 3))};
  for (const Bytes& file : files) {
    for (std::size_t size = 0; size < file.size(); size += size < 40 ? 1 : 23) {
      const Bytes prefix(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
      EXPECT_NE(decode_rejection(prefix), "") << size << " of " << file.size();
      EXPECT_NE(decode_rejection(prefix,
                                 {.region = ImageRegion{.x = 0, .y = 0, .width = 8, .height = 1}}),
                "")
          << size << " of " << file.size();
    }
  }
}

TEST(ImageDecode, HugePicturesAreRefusedBeforeAllocating) {
  Bytes jpeg = make_jpeg(16, 16);
  for (std::size_t i = 0; i + 8 < jpeg.size(); ++i) {
    if (jpeg[i] == std::byte{0xFF} && jpeg[i + 1] == std::byte{0xC0}) {
      jpeg[i + 5] = std::byte{0x40};  // more than 16384 pixels per side
      jpeg[i + 7] = std::byte{0x40};
    }
  }
  EXPECT_NE(
      decode_rejection(jpeg).find("16400x16400 is 268960000 pixels, above the limit of 134217728"),
      std::string::npos)
      << decode_rejection(jpeg);
  EXPECT_NE(decode_rejection(jpeg, {}, {.pixels = std::int64_t{1} << 40}).find("cannot hold"),
            std::string::npos);
  EXPECT_NE(decode_rejection(make_jpeg(64, 48), {}, {.pixels = 64 * 48 - 1}).find("limit"),
            std::string::npos);
  EXPECT_EQ(decode_rejection(make_jpeg(64, 48), {}, {.pixels = 64 * 48}), "");

  const Bytes png = make_png(64, 48, {}, smooth_picture(64, 48, 3));
  EXPECT_NE(decode_rejection(png, {}, {.pixels = 64 * 48 - 1}).find("limit"), std::string::npos);
  EXPECT_EQ(decode_rejection(png, {}, {.pixels = 64 * 48}), "");
}

TEST(ImageDecode, AJpegWithTooManyScansIsRefused) {
  const Bytes file = make_jpeg(64, 48, {.progressive = true});
  EXPECT_NE(decode_rejection(file, {}, {.scans = 3}).find("more than 3 scans"), std::string::npos)
      << decode_rejection(file, {}, {.scans = 3});
}

TEST(ImageDecode, ADecoderWorksAfterAnError) {
  const Bytes good = make_jpeg(64, 48);
  Bytes bad = good;
  bad.resize(bad.size() - 60);
  bad.push_back(std::byte{0xFF});
  bad.push_back(std::byte{0xD9});
  const auto expected = decoded(good);
  ImageDecoder decoder;
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(decoder.decode(bad, "bad"), DataError);
    const Tensor image = decoder.decode(good, "good");
    const auto values = image.values<std::uint8_t>();
    EXPECT_TRUE(std::equal(values.begin(), values.end(), expected.begin(), expected.end()));
  }
}

// libjpeg would reuse the tables of the previous file.
TEST(ImageDecode, AFileWithoutTablesDoesNotReuseAnothers) {
  const Bytes whole_file = make_jpeg(64, 48);
  Bytes bare(whole_file.begin(), whole_file.begin() + 2);
  for (std::size_t at = 2; at + 4 < whole_file.size();) {
    const auto marker = std::to_integer<int>(whole_file[at + 1]);
    const std::size_t length = std::to_integer<std::size_t>(whole_file[at + 2]) << 8 |
                               std::to_integer<std::size_t>(whole_file[at + 3]);
    const auto begin = whole_file.begin() + static_cast<std::ptrdiff_t>(at);
    if (marker == 0xDA) {
      bare.insert(bare.end(), begin, whole_file.end());
      break;
    }
    const auto end = begin + static_cast<std::ptrdiff_t>(length) + 2;
    if (marker != 0xDB) bare.insert(bare.end(), begin, end);
    at += length + 2;
  }
  ASSERT_LT(bare.size(), whole_file.size());
  ImageDecoder decoder;
  decoder.decode(whole_file, "whole");
  EXPECT_THROW(decoder.decode(bare, "bare"), DataError);
}

TEST(ImageDecode, RowsAreDecodedOneByOne) {
  const Bytes file = make_jpeg(64, 48);
  const auto expected = decoded(file);
  ImageDecoder decoder;
  decoder.open(file, "rows");
  const DecodedPart part = decoder.start({});
  std::vector<std::uint8_t> row(static_cast<std::size_t>(part.width) * 3);
  for (int y = 0; y < part.height; ++y) {
    decoder.read_row(row.data());
    ASSERT_TRUE(std::equal(row.begin(), row.end(), expected.begin() + y * 64 * 3));
  }
  EXPECT_THROW(decoder.read_row(row.data()), UsageError);
}

TEST(ImageDecode, ABufferThatIsTooSmallIsRefused) {
  std::vector<std::uint8_t> pixels(64 * 48 * 3 - 1);
  EXPECT_THROW(ImageDecoder().decode(make_jpeg(64, 48), "small", {}, pixels), UsageError);
}

}  // namespace
}  // namespace lockstep
