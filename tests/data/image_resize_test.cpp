#include "lockstep/data/image/resize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>

#include "lockstep/base/random.h"

namespace lockstep {
namespace {

Tensor noise(int height, int width, int channels, std::uint64_t stream = 0) {
  RandomSequence random(3, stream);
  Tensor image(DType::U8, {height, width, channels});
  for (std::uint8_t& value : image.values<std::uint8_t>()) {
    value = static_cast<std::uint8_t>(random.below(256));
  }
  return image;
}

// The filters by definition, in double precision.
double filter_of(Interpolation interpolation, double x) {
  x = std::abs(x);
  const auto sinc = [](double t) {
    return t < 1e-9 ? 1.0 : std::sin(std::numbers::pi * t) / (std::numbers::pi * t);
  };
  const auto cubic = [x](double b, double c) {
    if (x < 1) {
      return ((12 - 9 * b - 6 * c) * x * x * x + (-18 + 12 * b + 6 * c) * x * x + 6 - 2 * b) / 6;
    }
    if (x < 2) {
      return ((-b - 6 * c) * x * x * x + (6 * b + 30 * c) * x * x + (-12 * b - 48 * c) * x + 8 * b +
              24 * c) /
             6;
    }
    return 0.0;
  };
  switch (interpolation) {
    case Interpolation::Bilinear:
      return std::max(0.0, 1 - x);
    case Interpolation::Bicubic:
      return cubic(0, 0.5);
    case Interpolation::MitchellCubic:
      return cubic(1.0 / 3, 1.0 / 3);
    case Interpolation::Lanczos3:
      return x < 3 ? sinc(x) * sinc(x / 3) : 0;
    case Interpolation::Lanczos5:
      return x < 5 ? sinc(x) * sinc(x / 5) : 0;
    case Interpolation::Gaussian:
      return x < 1.5 ? std::exp(-2 * x * x) : 0;
    default:
      return 0;
  }
}

// The weights of all input pixels for one output along an axis, without tables or supports.
std::vector<double> weights_of(int in, int out, int i, const ResizeOptions& options) {
  std::vector<double> weights(static_cast<std::size_t>(in));
  const double scale = static_cast<double>(in) / out;
  const double centre = (i + 0.5) * scale;
  const double stretch = options.antialias ? std::max(scale, 1.0) : 1.0;
  double sum = 0;
  for (int k = 0; k < in; ++k) {
    double& weight = weights[static_cast<std::size_t>(k)];
    if (options.interpolation == Interpolation::Nearest) {
      weight = k == std::min(in - 1, static_cast<int>(std::floor(centre))) ? 1 : 0;
    } else if (options.interpolation == Interpolation::Area) {
      weight = std::max(0.0, std::min(k + 1.0, (i + 1) * scale) - std::max<double>(k, i * scale));
    } else {
      weight = filter_of(options.interpolation, (k + 0.5 - centre) / stretch);
    }
    sum += weight;
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

std::vector<double> naive_resize(const Tensor& image, int height, int width,
                                 const ResizeOptions& options) {
  const int from_height = static_cast<int>(image.shape()[0]);
  const int from_width = static_cast<int>(image.shape()[1]);
  const int channels = static_cast<int>(image.shape()[2]);
  const auto pixels = image.values<std::uint8_t>();
  std::vector<double> out;
  for (int y = 0; y < height; ++y) {
    const auto down = weights_of(from_height, height, y, options);
    for (int x = 0; x < width; ++x) {
      const auto across = weights_of(from_width, width, x, options);
      for (int c = 0; c < channels; ++c) {
        double sum = 0;
        for (int i = 0; i < from_height; ++i) {
          for (int j = 0; j < from_width; ++j) {
            sum += down[static_cast<std::size_t>(i)] * across[static_cast<std::size_t>(j)] *
                   pixels[static_cast<std::size_t>((i * from_width + j) * channels + c)];
          }
        }
        out.push_back(sum);
      }
    }
  }
  return out;
}

const std::vector<Interpolation> kAll = {Interpolation::Nearest,  Interpolation::Bilinear,
                                         Interpolation::Bicubic,  Interpolation::Area,
                                         Interpolation::Lanczos3, Interpolation::Lanczos5,
                                         Interpolation::Gaussian, Interpolation::MitchellCubic};

TEST(ImageResize, EveryInterpolationFollowsItsDefinition) {
  const std::vector<std::array<int, 4>> sizes = {{7, 9, 3, 4},   {7, 9, 13, 20}, {5, 5, 5, 5},
                                                 {12, 3, 4, 10}, {1, 1, 3, 2},   {16, 16, 1, 1},
                                                 {31, 17, 6, 17}};
  for (const auto& [height, width, to_height, to_width] : sizes) {
    for (const int channels : {1, 2, 3, 4}) {
      const Tensor image = noise(height, width, channels);
      for (const Interpolation interpolation : kAll) {
        for (const bool antialias : {false, true}) {
          const ResizeOptions options{.interpolation = interpolation, .antialias = antialias};
          const Tensor result = resize_image(image, to_height, to_width, options);
          const auto expected = naive_resize(image, to_height, to_width, options);
          // Without antialiasing, bicubic weights come from a table of 1024 positions per pixel.
          const bool by_table = interpolation == Interpolation::Bicubic && !antialias;
          const auto values = result.values<float>();
          for (std::size_t i = 0; i < expected.size(); ++i) {
            ASSERT_NEAR(values[i], expected[i], by_table ? 0.4 : 1e-3)
                << static_cast<int>(interpolation) << " " << antialias << " " << height << "x"
                << width << " to " << to_height << "x" << to_width;
          }
        }
      }
    }
  }
}

// TensorFlow's bicubic weights half-way between pixels are -1/16 and 9/16; at the edge those of
// the pixels inside are normalised.
TEST(ImageResize, BicubicNormalisesTheWeightsAtTheEdge) {
  const Tensor image = Tensor::of<float>({16, 32, 48, 80}, {1, 4, 1});
  const Tensor result =
      resize_image(image, 1, 2, {.interpolation = Interpolation::Bicubic, .antialias = false});
  const double inside = 9.0 / 16 + 9.0 / 16 - 1.0 / 16;
  EXPECT_NEAR(result.values<float>()[0], (9 * 16 + 9 * 32 - 48) / 16.0 / inside, 1e-4);
  EXPECT_NEAR(result.values<float>()[1], (-32 + 9 * 48 + 9 * 80) / 16.0 / inside, 1e-4);
}

TEST(ImageResize, BytesAreRoundedAndStayInRange) {
  const Tensor image = noise(9, 11, 3);
  for (const Interpolation interpolation : kAll) {
    const ResizeOptions floats{.interpolation = interpolation, .antialias = true};
    ResizeOptions bytes = floats;
    bytes.dtype = DType::U8;
    const Tensor exact = resize_image(image, 20, 17, floats);
    const Tensor rounded = resize_image(image, 20, 17, bytes);
    for (std::size_t i = 0; i < exact.values<float>().size(); ++i) {
      const float value = std::clamp(exact.values<float>()[i], 0.0f, 255.0f);
      ASSERT_NEAR(rounded.values<std::uint8_t>()[i], value, 0.5001);
    }
  }
}

TEST(ImageResize, AUniformPictureStaysUniform) {
  Tensor image(DType::U8, {37, 23, 3});
  for (std::uint8_t& value : image.values<std::uint8_t>()) value = 201;
  for (const Interpolation interpolation : kAll) {
    for (const bool antialias : {false, true}) {
      const Tensor result =
          resize_image(image, 11, 40, {.interpolation = interpolation, .antialias = antialias});
      for (const float value : result.values<float>()) ASSERT_NEAR(value, 201, 1e-3);
    }
  }
}

TEST(ImageResize, AResizerCarriesNoStateOver) {
  Resizer used;
  for (int i = 0; i < 6; ++i) {
    const Tensor image = noise(5 + 7 * i, 40 - 6 * i, 1 + i % 4, static_cast<std::uint64_t>(i));
    const ResizeOptions options{.interpolation = kAll[static_cast<std::size_t>(i)],
                                .antialias = i % 2 == 0};
    EXPECT_TRUE(used.resize(image, 14, 9, options).same_bits(resize_image(image, 14, 9, options)));
  }
}

TEST(ImageResize, NaNOutsideTheFilterDoesNotSpread) {
  Tensor image(DType::F32, {1, 8, 1});
  image.values<float>()[7] = std::numeric_limits<float>::quiet_NaN();
  const Tensor result = resize_image(image, 1, 4);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(result.values<float>()[i], 0);
}

TEST(ImageResize, InvalidArgumentsAreRefused) {
  EXPECT_THROW(resize_image(Tensor(DType::U8, {4, 4}), 2, 2), UsageError);
  EXPECT_THROW(resize_image(Tensor(DType::I32, {4, 4, 3}), 2, 2), UsageError);
  EXPECT_THROW(resize_image(Tensor(DType::U8, {4, 4, 3}), 0, 2), UsageError);
  EXPECT_THROW(resize_image(Tensor(DType::U8, {0, 4, 3}), 2, 2), UsageError);
  EXPECT_THROW(interpolation_named("cubic"), UsageError);
  EXPECT_EQ(interpolation_named("mitchellcubic"), Interpolation::MitchellCubic);
}

// All pairs of bytes with weights of all sizes, including some that a two-tap shortcut cannot take.
TEST(ImageLoops, TwoRowsBlendToTheirRoundedWeightedSum) {
  constexpr std::size_t kPairs = 256 * 256;
  constexpr int kOne = 1 << kWeightBits;
  constexpr int kShift = kWeightBits - kRowBits;
  std::vector<std::uint8_t> first(kPairs + kRowSlack);
  std::vector<std::uint8_t> second(kPairs + kRowSlack);
  for (std::size_t i = 0; i < kPairs; ++i) {
    first[i] = static_cast<std::uint8_t>(i / 256);
    second[i] = static_cast<std::uint8_t>(i % 256);
  }
  const std::array<const std::uint8_t*, 2> rows = {first.data(), second.data()};
  std::vector<std::array<int, 2>> weights = {
      {kOne + 900, -900}, {-900, kOne + 900}, {kOne, kOne}, {kOne / 2, 3}, {-32768, 32767}};
  for (int weight = 0; weight <= kOne; weight += weight < 3 || weight >= kOne - 3 ? 1 : 157) {
    weights.push_back({kOne - weight, weight});
  }
  weights.push_back({0, kOne});
  std::vector<std::int16_t> blended(kPairs + kRowSlack);
  for (const auto& [of_first, of_second] : weights) {
    const std::array<std::int16_t, 2> pair = {static_cast<std::int16_t>(of_first),
                                              static_cast<std::int16_t>(of_second)};
    for (const ImageIsa isa : {ImageIsa::Any, ImageIsa::Avx2, ImageIsa::Avx512}) {
      if (!has_isa(isa)) continue;
      image_loops(isa).blend_rows(rows.data(), pair.data(), 1, kPairs, blended.data());
      for (std::size_t i = 0; i < kPairs; ++i) {
        const int sum = first[i] * of_first + second[i] * of_second + (1 << (kShift - 1));
        ASSERT_EQ(blended[i], std::clamp(sum >> kShift, -32768, 32767))
            << int{first[i]} << " × " << of_first << ", " << int{second[i]} << " × " << of_second
            << " set " << static_cast<int>(isa);
      }
    }
  }
}

TEST(ImageLoops, EveryInstructionSetGivesTheSameBits) {
  const Tensor bytes = noise(8, 101, 4);
  Tensor floats = bytes.cast(DType::F32);
  const std::size_t count = floats.values<float>().size();
  RandomSequence random(5, 5);
  for (float& value : floats.values<float>()) value += random.uniform() - 0.5f;

  // The results of all loops of an instruction set on the same input.
  const auto run = [&](const ImageLoops& loops) {
    std::vector<std::uint32_t> bits;
    const auto keep = [&bits](const auto& values) {
      for (const auto value : values) {
        std::uint32_t word = 0;
        std::memcpy(&word, &value, sizeof value);
        bits.push_back(word);
      }
    };
    for (const int outputs : {1, 2, 7, 50, 133}) {
      for (const bool antialias : {false, true}) {
        AxisWeights axis;
        axis.fill(whole_axis(101), outputs, {.antialias = antialias});
        FixedColumns columns;
        for (const int channels : {1, 3, 4}) {
          columns.fill(axis, 0, channels == 1 ? 1 : 4);
          AxisWeights down;
          down.fill(whole_axis(8), 5, {.antialias = antialias});
          FixedRows rows;
          rows.fill(down);
          std::vector<const std::uint8_t*> taps;
          std::vector<std::uint8_t> padded(8 * (404 + kRowSlack));
          for (std::size_t y = 0; y < 8; ++y) {
            std::copy_n(bytes.values<std::uint8_t>().data() + y * 404, 404,
                        padded.data() + y * (404 + kRowSlack));
          }
          for (int k = 0; k < 2 * rows.tap_pairs(); ++k) {
            const int row = std::min(down.first(2) + k, 7);
            taps.push_back(padded.data() + static_cast<std::size_t>(row) * (404 + kRowSlack));
          }
          std::vector<std::int16_t> blended(404 + 4 + kRowSlack);
          loops.blend_rows(taps.data(), rows.weights(2), rows.tap_pairs(), 404, blended.data());
          keep(std::span(blended).first(404));
          std::fill(blended.begin() + 404, blended.end(), std::int16_t{0});
          FixedAffine affine{.bias = {5, -7, 1000000, 3}, .scale = {1e-6f, 3e-6f, 2e-7f, 1e-3f}};
          std::vector<float> out(static_cast<std::size_t>(outputs * channels));
          if (channels == 1) {
            loops.blend_gray_columns(blended.data(), columns, affine, out.data());
          } else {
            loops.blend_columns(blended.data(), columns, affine, channels, out.data());
          }
          keep(out);
          out.assign(out.size(), 0);
          loops.blend_float_columns(floats.values<float>().data(), axis, channels, out.data());
          keep(out);
        }
      }
    }
    const float* in = floats.values<float>().data();
    const std::vector<const float*> rows = {in, in + 404, in + 808};
    const std::vector<float> weights = {0.3f, -0.1f, 0.8f};
    std::vector<float> out(404);
    loops.blend_float_rows(rows.data(), weights.data(), 3, 404, out.data());
    keep(out);
    std::vector<std::uint8_t> narrow(count);
    loops.to_bytes(in, count, narrow.data());
    keep(narrow);
    std::vector<std::uint16_t> half(count);
    loops.to_f16(in, count, half.data());
    keep(half);
    loops.to_bf16(in, count, half.data());
    keep(half);
    const std::size_t pixels = count / 3;
    std::vector<float> planes(3 * pixels);
    float* red = planes.data();
    float* green = red + pixels;
    float* blue = green + pixels;
    loops.split(in, pixels, red, green, blue);
    loops.brightness(red, 1.2f, pixels);
    loops.contrast(green, 77.7f, 0.7f, pixels);
    loops.saturation(red, green, blue, 1.3f, pixels);
    loops.hue(red, green, blue, 0.13f, pixels);
    keep(planes);
    const double sum = loops.sum_of_gray(red, green, blue, pixels);
    keep(std::vector<float>{static_cast<float>(sum)});
    std::vector<float> joined(3 * pixels);
    loops.join(red, green, blue, weights.data(), weights.data(), pixels, joined.data());
    keep(joined);
    return bits;
  };

  const auto expected = run(image_loops(ImageIsa::Any));
  for (const ImageIsa isa : {ImageIsa::Avx2, ImageIsa::Avx512}) {
    if (!has_isa(isa)) {
      EXPECT_THROW(image_loops(isa), UsageError);
      continue;
    }
    EXPECT_EQ(run(image_loops(isa)), expected) << static_cast<int>(isa);
  }
}

}  // namespace
}  // namespace lockstep
