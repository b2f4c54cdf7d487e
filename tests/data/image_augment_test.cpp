#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "golden/ops.h"
#include "lockstep/data/image/color_jitter.h"
#include "lockstep/data/image/crop.h"
#include "lockstep/data/image/transform.h"

namespace lockstep {
namespace {

ImageInfo of_size(int width, int height) {
  return {.format = ImageFormat::Jpeg, .width = width, .height = height, .channels = 3};
}

TEST(RandomResizedCrop, StaysInsideAndWithinItsBounds) {
  const ImageInfo info = of_size(500, 375);
  double areas = 0;
  double log_ratios = 0;
  std::set<int> places;
  constexpr int kDraws = 4000;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    RandomSequence random(9, i);
    const ImageRegion region = random_resized_crop(info, {}, random);
    ASSERT_GE(region.x, 0);
    ASSERT_GE(region.y, 0);
    ASSERT_LE(region.x + region.width, 500);
    ASSERT_LE(region.y + region.height, 375);
    const double area = static_cast<double>(region.width) * region.height / (500.0 * 375);
    const double ratio = static_cast<double>(region.width) / region.height;
    ASSERT_GE(area, 0.078);
    ASSERT_LE(area, 1);
    ASSERT_GE(ratio, 0.74);
    ASSERT_LE(ratio, 1.35);
    areas += area;
    log_ratios += std::log(ratio);
    places.insert(region.x);
  }
  // Large areas whose ratio does not fit are drawn again, which lowers the mean area below 0.54.
  // Compared with torchvision's means (golden/make_ops.py), within four standard errors.
  const auto means = golden::op("crop/means").values<double>();
  EXPECT_NEAR(areas / kDraws, means[0], 0.015);
  EXPECT_NEAR(log_ratios / kDraws, means[1], 0.01);
  EXPECT_GT(places.size(), 150u);
}

TEST(RandomResizedCrop, TheMiddleIsTakenIfNothingFits) {
  RandomSequence random(1, 1);
  EXPECT_EQ(random_resized_crop(of_size(1000, 10), {.min_area = 0.9f}, random),
            (ImageRegion{.x = 493, .y = 0, .width = 13, .height = 10}));
  EXPECT_EQ(random_resized_crop(of_size(10, 1000), {.min_area = 0.9f}, random),
            (ImageRegion{.x = 0, .y = 493, .width = 10, .height = 13}));
  EXPECT_EQ(random_resized_crop(of_size(100, 100), {.tries = 0}, random),
            (ImageRegion{.x = 0, .y = 0, .width = 100, .height = 100}));
  EXPECT_EQ(random_resized_crop(of_size(1, 1), {}, random),
            (ImageRegion{.x = 0, .y = 0, .width = 1, .height = 1}));
}

TEST(RandomResizedCrop, ContradictoryBoundsAreRefused) {
  EXPECT_THROW(check(RandomResizedCrop{.min_area = 0}), UsageError);
  EXPECT_THROW(check(RandomResizedCrop{.min_area = 0.5f, .max_area = 0.4f}), UsageError);
  EXPECT_THROW(check(RandomResizedCrop{.max_area = 1.5f}), UsageError);
  EXPECT_THROW(check(RandomResizedCrop{.min_ratio = 2, .max_ratio = 1}), UsageError);
}

// Like keras.utils.image_dataset_from_directory(crop_to_aspect_ratio=True), including its rounding.
TEST(CropToAspect, TakesTheLargestCentredRegion) {
  EXPECT_EQ(crop_to_aspect(of_size(500, 375), 256, 256),
            (ImageRegion{.x = 62, .y = 0, .width = 375, .height = 375}));
  EXPECT_EQ(crop_to_aspect(of_size(375, 500), 256, 256),
            (ImageRegion{.x = 0, .y = 62, .width = 375, .height = 375}));
  EXPECT_EQ(crop_to_aspect(of_size(101, 200), 30, 20),
            (ImageRegion{.x = 0, .y = 66, .width = 101, .height = 67}));
  EXPECT_EQ(crop_to_aspect(of_size(512, 256), 224, 224, 224.0 / 256),
            (ImageRegion{.x = 144, .y = 16, .width = 224, .height = 224}));
  EXPECT_EQ(crop_to_aspect(of_size(3, 1), 1, 100).width, 1);
}

Tensor some_colors() {
  return Tensor::of<float>({200, 30,  90, 10, 250, 130, 60, 70,  240, 128, 128, 128,
                            255, 255, 0,  0,  0,   0,   90, 200, 210, 33,  44,  22},
                           {2, 4, 3});
}

void expect_values(const Tensor& image, const std::vector<float>& expected) {
  ASSERT_EQ(image.values<float>().size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(image.values<float>()[i], expected[i], 2e-3) << "value " << i;
  }
}

// With adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue (golden/make_ops.py).
TEST(ColorJitter, AgreesWithTorchvision) {
  const auto expect_golden = [](const std::string& name, const ColorJitterDraw& draw) {
    SCOPED_TRACE(name);
    const auto values = golden::op("color/" + name + "/y").values<float>();
    expect_values(jitter_colors(golden::op("color/" + name + "/x0"), draw),
                  {values.begin(), values.end()});
  };
  expect_golden("brightness", {.brightness = 1.4f});
  expect_golden("contrast", {.contrast = 0.6f});
  expect_golden("saturation", {.saturation = 1.7f});
  expect_golden("hue", {.hue = 0.2f});
  expect_golden("hue_back", {.hue = -0.35f});
}

TEST(ColorJitter, TheOrderOfChangesMatters) {
  ColorJitterDraw first{.brightness = 1.6f, .contrast = 0.4f};
  ColorJitterDraw second = first;
  std::swap(second.order[0], second.order[1]);
  EXPECT_FALSE(jitter_colors(some_colors(), first).same_bits(jitter_colors(some_colors(), second)));
  EXPECT_TRUE(jitter_colors(some_colors(), {}).same_bits(some_colors()));
}

TEST(ColorJitter, DrawsStayWithinTheStrengths) {
  const ColorJitter options{.brightness = 0.4f, .contrast = 1.5f, .saturation = 0.2f, .hue = 0.1f};
  std::set<std::array<ColorChange, 4>> orders;
  for (std::uint64_t i = 0; i < 2000; ++i) {
    RandomSequence random(2, i);
    const ColorJitterDraw draw = draw_color_jitter(options, random);
    ASSERT_GE(draw.brightness, 0.6f);
    ASSERT_LE(draw.brightness, 1.4f);
    ASSERT_GE(draw.contrast, 0);
    ASSERT_LE(draw.contrast, 2.5f);
    ASSERT_GE(draw.saturation, 0.8f);
    ASSERT_LE(draw.saturation, 1.2f);
    ASSERT_LE(std::abs(draw.hue), 0.1f);
    orders.insert(draw.order);
  }
  EXPECT_EQ(orders.size(), 24u);
  RandomSequence random(2, 0);
  const ColorJitterDraw none = draw_color_jitter({}, random);
  EXPECT_EQ(none.brightness, 1);
  EXPECT_EQ(none.hue, 0);
  EXPECT_THROW(check(ColorJitter{.hue = 0.6f}), UsageError);
  EXPECT_THROW(check(ColorJitter{.contrast = -1}), UsageError);
}

TEST(ImageTransform, CropMirrorAndLayouts) {
  Tensor image(DType::U8, {3, 4, 2});
  for (std::size_t i = 0; i < 24; ++i) {
    image.values<std::uint8_t>()[i] = static_cast<std::uint8_t>(i);
  }
  EXPECT_TRUE(crop_image(image, {.x = 1, .y = 2, .width = 2, .height = 1})
                  .same_bits(Tensor::of<std::uint8_t>({18, 19, 20, 21}, {1, 2, 2})));
  EXPECT_THROW(crop_image(image, {.x = 3, .y = 0, .width = 2, .height = 1}), UsageError);
  const Tensor mirrored = mirror_image(image);
  EXPECT_EQ(mirrored.values<std::uint8_t>()[0], 6);
  EXPECT_EQ(mirrored.values<std::uint8_t>()[1], 7);
  EXPECT_TRUE(mirror_image(mirrored).same_bits(image));
  const Tensor planes = to_chw(image);
  EXPECT_EQ(planes.shape(), Shape({2, 3, 4}));
  for (std::size_t i = 0; i < 12; ++i) {
    EXPECT_EQ(planes.values<std::uint8_t>()[i], 2 * i);
    EXPECT_EQ(planes.values<std::uint8_t>()[12 + i], 2 * i + 1);
  }
  EXPECT_TRUE(to_hwc(planes).same_bits(image));
}

TEST(ImageTransform, NormalizeScalesThenShiftsEachChannel) {
  const Tensor image = Tensor::of<std::uint8_t>({0, 51, 255, 102}, {1, 2, 2});
  const std::vector<float> mean = {0.5f, 0.2f};
  const std::vector<float> deviation = {0.25f, 0.5f};
  const Tensor result =
      normalize_image(image, {.rescale = 1.0f / 255, .mean = mean, .deviation = deviation});
  const std::vector<float> expected = {-2, 0, 2, 0.4f};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(result.values<float>()[i], expected[i], 1e-6);
  }
  const std::vector<float> three = {1, 2, 3};
  EXPECT_THROW(normalize_image(image, {.mean = three}), UsageError);
}

float half_as_float(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) {
    return fraction != 0 ? std::numeric_limits<float>::quiet_NaN()
                         : sign * std::numeric_limits<float>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

// Every half converts to itself; ties go to the even one.
TEST(ImageTransform, F16RoundsToTheNearest) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = half_as_float(half);
    const auto converted = [](float x) {
      std::uint16_t out = 0;
      image_loops(ImageIsa::Any).to_f16(&x, 1, &out);
      return out;
    };
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(half_as_float(converted(value))));
      continue;
    }
    ASSERT_EQ(converted(value), half);
    if ((bits & 0x7FFF) >= 0x7BFF) continue;
    const auto next = static_cast<std::uint16_t>(half + 1);
    const float middle = (value + half_as_float(next)) / 2;
    ASSERT_EQ(converted(middle), half % 2 == 0 ? half : next) << bits;
    ASSERT_EQ(converted(std::nextafter(middle, value)), half) << bits;
    ASSERT_EQ(converted(std::nextafter(middle, half_as_float(next))), next) << bits;
  }
  const std::vector<float> large = {65519.99f, 65520.0f, -1e30f};
  std::array<std::uint16_t, 3> out;
  image_loops().to_f16(large.data(), 3, out.data());
  EXPECT_EQ(out, (std::array<std::uint16_t, 3>{0x7BFF, 0x7C00, 0xFC00}));
}

TEST(ImageTransform, Bf16AndBytesRoundToTheNearest) {
  const Tensor image =
      Tensor::of<float>({1.0f, 1.00390625f, 1.01171875f, -3.1f, 255.5f, 2.5f}, {1, 2, 3});
  const Tensor bf16 = convert_image(image, DType::BF16);
  std::array<std::uint16_t, 6> bits;
  std::memcpy(bits.data(), bf16.raw(), sizeof bits);
  EXPECT_EQ(bits[0], 0x3F80);
  EXPECT_EQ(bits[1], 0x3F80);  // half-way, to even
  EXPECT_EQ(bits[2], 0x3F82);  // half-way, to even
  EXPECT_EQ(bits[3], std::bit_cast<std::uint32_t>(-3.1f) >> 16);
  const Tensor bytes = convert_image(image, DType::U8);
  EXPECT_TRUE(bytes.same_bits(Tensor::of<std::uint8_t>({1, 1, 1, 0, 255, 2}, {1, 2, 3})));
  EXPECT_TRUE(convert_image(bytes, DType::F32)
                  .same_bits(Tensor::of<float>({1, 1, 1, 0, 255, 2}, {1, 2, 3})));
  EXPECT_THROW(convert_image(image, DType::I64), UsageError);
}

}  // namespace
}  // namespace lockstep
