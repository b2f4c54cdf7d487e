#include "lockstep/data/image/reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "data/image_files.h"
#include "lockstep/data/image/resize.h"
#include "lockstep/data/image/transform.h"

namespace lockstep {
namespace {

Tensor read(ImageReader& reader, const Bytes& file, std::uint64_t id, DType dtype = DType::F32) {
  RandomSequence random(11, id);
  Tensor sample(dtype, reader.shape());
  reader.read(file, "sample", random, {sample.raw(), sample.bytes()});
  return sample;
}

// The same sample, computed operation by operation on whole pictures in floats.
Tensor expected_sample(const ImageReaderOptions& options, const Bytes& file, std::uint64_t id) {
  ImageDecoder decoder;
  RandomSequence random(11, id);
  const ImageInfo info = decoder.open(file, "expected");
  const ImageDraw draw = ImageReader(options).draw(info, random);
  Tensor image = decoder.decode(file, "expected", {.color_mode = options.color_mode});
  image = crop_image(image, draw.crop);
  image = resize_image(image, options.height, options.width,
                       {.interpolation = options.interpolation, .antialias = options.antialias});
  if (draw.mirrored) image = mirror_image(image);
  if (options.color_jitter.any()) image = jitter_colors(image, draw.color_jitter);
  const auto channels = static_cast<std::size_t>(image.shape()[2]);
  return normalize_image(image, {.rescale = options.rescale,
                                 .mean = std::span(options.mean).first(channels),
                                 .deviation = std::span(options.deviation).first(channels)});
}

double largest_difference(const Tensor& a, const Tensor& b) {
  EXPECT_EQ(a.shape(), b.shape());
  double largest = 0;
  for (std::size_t i = 0; i < a.values<float>().size(); ++i) {
    largest = std::max<double>(largest, std::abs(a.values<float>()[i] - b.values<float>()[i]));
  }
  return largest;
}

ImageReaderOptions augmenting() {
  return {.height = 40,
          .width = 48,
          .crop = ImageCrop::Random,
          .mirror_probability = 0.5f,
          .scaled_decoding = false};
}

TEST(ImageReader, MatchesTheSeparateOperations) {
  const std::vector<Bytes> files = {
      make_jpeg(150, 121),
      make_jpeg(97, 140, {.horizontal = 1, .vertical = 1}),
      make_jpeg(150, 121, {.progressive = true}),
      make_jpeg(33, 20, {.channels = 1}),
      make_png(90, 70, {}, smooth_picture(90, 70, 3)),
      make_png(90, 70, {.color_type = PNG_COLOR_TYPE_RGBA, .interlaced = true},
               smooth_picture(90, 70, 4))};
  for (const Interpolation interpolation : {Interpolation::Bilinear, Interpolation::Bicubic,
                                            Interpolation::Nearest, Interpolation::Area}) {
    for (const bool antialias : {false, true}) {
      for (const ColorMode mode : {ColorMode::Rgb, ColorMode::Grayscale, ColorMode::Rgba}) {
        ImageReaderOptions options = augmenting();
        options.interpolation = interpolation;
        options.antialias = antialias;
        options.color_mode = mode;
        ImageReader reader(options);
        for (std::size_t f = 0; f < files.size(); ++f) {
          for (std::uint64_t id = 0; id < 6; ++id) {
            const Tensor sample = read(reader, files[f], id);
            ASSERT_LT(largest_difference(sample, expected_sample(options, files[f], id)), 1.0 / 16)
                << "file " << f << " id " << id << " interpolation "
                << static_cast<int>(interpolation) << antialias << " mode "
                << static_cast<int>(mode);
          }
        }
      }
    }
  }
}

TEST(ImageReader, NormalizesEachChannel) {
  ImageReaderOptions options = augmenting();
  options.rescale = 1.0f / 255;
  options.mean = kImageNetMean;
  options.deviation = kImageNetDeviation;
  ImageReader reader(options);
  const Bytes file = make_jpeg(150, 121);
  for (std::uint64_t id = 0; id < 8; ++id) {
    EXPECT_LT(largest_difference(read(reader, file, id), expected_sample(options, file, id)),
              1.0 / 16 / 255 / 0.22);
  }
}

TEST(ImageReader, JittersColors) {
  ImageReaderOptions options = augmenting();
  options.color_jitter = {.brightness = 0.4f, .contrast = 0.4f, .saturation = 0.4f, .hue = 0.2f};
  options.rescale = 1.0f / 255;
  options.mean = kImageNetMean;
  options.deviation = kImageNetDeviation;
  ImageReader reader(options);
  const Bytes file = make_jpeg(150, 121);
  for (std::uint64_t id = 0; id < 8; ++id) {
    // In nearly grey pixels a change of hue amplifies rounding; on average the error stays small.
    const Tensor sample = read(reader, file, id);
    const Tensor expected = expected_sample(options, file, id);
    double sum = 0;
    for (std::size_t i = 0; i < sample.values<float>().size(); ++i) {
      sum += std::abs(sample.values<float>()[i] - expected.values<float>()[i]);
    }
    EXPECT_LT(sum / static_cast<double>(sample.values<float>().size()), 1e-3);
    EXPECT_LT(largest_difference(sample, expected), 0.05);
  }
}

TEST(ImageReader, ScaledDecodingIsCloseToFullDecoding) {
  const Bytes file = make_jpeg(400, 380, {.quality = 95});
  ImageReaderOptions options = augmenting();
  options.antialias = true;
  ImageReader exact(options);
  options.scaled_decoding = true;
  ImageReader scaled(options);
  int scaled_samples = 0;
  for (std::uint64_t id = 0; id < 20; ++id) {
    const Tensor a = read(exact, file, id);
    const Tensor b = read(scaled, file, id);
    double sum = 0;
    for (std::size_t i = 0; i < a.values<float>().size(); ++i) {
      sum += std::abs(a.values<float>()[i] - b.values<float>()[i]);
    }
    EXPECT_LT(sum / static_cast<double>(a.values<float>().size()), 4) << id;
    RandomSequence random(11, id);
    std::vector<std::byte> bytes(scaled.sample_bytes());
    scaled_samples += scaled.read(file, "scaled", random, bytes).scale > 1;
  }
  EXPECT_GE(scaled_samples, 15);
}

TEST(ImageReader, LayoutsAndDtypesHoldTheSameSample) {
  const Bytes file = make_jpeg(150, 121);
  for (const bool jitters : {false, true}) {
    ImageReaderOptions options = augmenting();
    if (jitters) options.color_jitter = {.brightness = 0.3f, .hue = 0.1f};
    ImageReader reader(options);
    const Tensor hwc = read(reader, file, 3);
    options.layout = ImageLayout::Chw;
    ImageReader planar(options);
    EXPECT_EQ(planar.shape(), Shape({3, 40, 48}));
    EXPECT_TRUE(read(planar, file, 3).same_bits(to_chw(hwc)));
    for (const DType dtype : {DType::U8, DType::F16, DType::BF16}) {
      options.dtype = dtype;
      ImageReader other(options);
      EXPECT_EQ(other.sample_bytes(), 40u * 48 * 3 * size_of(dtype));
      EXPECT_TRUE(read(other, file, 3, dtype).same_bits(convert_image(to_chw(hwc), dtype)));
    }
  }
}

// A sample depends only on its random sequence, not on the samples that were read before.
TEST(ImageReader, SamplesAreTheSameInAnyOrder) {
  const std::vector<Bytes> files = {make_jpeg(150, 121), make_jpeg(60, 200),
                                    make_png(90, 70, {}, smooth_picture(90, 70, 3))};
  ImageReaderOptions options = augmenting();
  options.color_jitter = {.brightness = 0.3f, .contrast = 0.3f, .saturation = 0.3f, .hue = 0.1f};
  ImageReader forward(options);
  ImageReader backward(options);
  std::vector<Tensor> samples;
  for (std::uint64_t id = 0; id < 12; ++id) samples.push_back(read(forward, files[id % 3], id));
  for (std::uint64_t id = 12; id-- > 0;) {
    EXPECT_TRUE(read(backward, files[id % 3], id).same_bits(samples[id])) << id;
  }
  EXPECT_FALSE(samples[0].same_bits(samples[3]));
}

TEST(ImageReader, EveryInstructionSetReadsTheSameBits) {
  const Bytes file = make_jpeg(150, 121);
  ImageReaderOptions options = augmenting();
  for (const bool antialias : {false, true}) {
    options.antialias = antialias;
    for (const ColorJitter& jitter : {ColorJitter{}, ColorJitter{.contrast = 0.5f, .hue = 0.3f}}) {
      options.color_jitter = jitter;
      ImageReader any(options, image_loops(ImageIsa::Any));
      ImageReader best(options);
      for (std::uint64_t id = 0; id < 6; ++id) {
        EXPECT_TRUE(read(any, file, id).same_bits(read(best, file, id)));
      }
    }
  }
}

TEST(ImageReader, NothingIsWrittenPastTheSample) {
  const Bytes file = make_jpeg(150, 121);
  for (const int width : {1, 2, 3, 17}) {
    ImageReaderOptions options = augmenting();
    options.width = width;
    options.height = 3;
    ImageReader reader(options);
    const std::size_t bytes = reader.sample_bytes();
    std::vector<float> memory(bytes / sizeof(float) + 8, -1);
    RandomSequence random(11, 0);
    reader.read(file, "sample", random, {reinterpret_cast<std::byte*>(memory.data()), bytes});
    for (std::size_t i = bytes / sizeof(float); i < memory.size(); ++i) EXPECT_EQ(memory[i], -1);
  }
}

TEST(ImageReader, MirrorsWithTheGivenProbability) {
  ImageReaderOptions options = augmenting();
  options.mirror_probability = 0.25f;
  const ImageReader reader(options);
  int mirrored = 0;
  for (std::uint64_t id = 0; id < 2000; ++id) {
    RandomSequence random(4, id);
    mirrored += reader.draw({.width = 100, .height = 80}, random).mirrored;
  }
  EXPECT_NEAR(mirrored, 500, 80);
}

TEST(ImageReader, AReaderWorksAfterAnError) {
  const Bytes good = make_jpeg(150, 121);
  Bytes bad = good;
  bad.resize(bad.size() / 2);
  ImageReader reader(augmenting());
  const Tensor expected = read(reader, good, 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THROW(read(reader, bad, 1), DataError);
    EXPECT_TRUE(read(reader, good, 1).same_bits(expected));
  }
}

TEST(ImageReader, ContradictoryOptionsAreRefused) {
  EXPECT_THROW(ImageReader({.height = 0}), UsageError);
  EXPECT_THROW(ImageReader({.mirror_probability = 1.5f}), UsageError);
  EXPECT_THROW(ImageReader({.dtype = DType::I32}), UsageError);
  EXPECT_THROW(ImageReader({.deviation = {1, 0, 1, 1}}), UsageError);
  EXPECT_THROW(ImageReader({.rescale = 1.0f / 255, .mean = {123, 117, 104, 0}}), UsageError);
  EXPECT_THROW(ImageReader({.color_mode = ColorMode::Rgba, .color_jitter = {.hue = 0.1f}}),
               UsageError);
  ImageReader reader({.height = 8, .width = 8});
  std::vector<std::byte> small(8 * 8 * 3 * 4 - 1);
  RandomSequence random(0, 0);
  EXPECT_THROW(reader.read(make_jpeg(20, 20), "small", random, small), UsageError);
}

}  // namespace
}  // namespace lockstep
