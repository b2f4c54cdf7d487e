#include "lockstep/data/image/transform.h"

#include <cstring>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/image/loops.h"

namespace lockstep {

namespace {

void expect_image(const Tensor& image, const char* step) {
  require(image.defined() && image.shape().rank() == 3, "[{}] an image has three axes, not {}",
          step, image.defined() ? image.shape().str() : "none");
}

std::size_t extent(const Tensor& image, int axis) {
  return static_cast<std::size_t>(image.shape()[axis]);
}

Tensor as_f32(const Tensor& image, const char* step) {
  if (image.dtype() == DType::F32) return image;
  require(image.dtype() == DType::U8, "[{}] images must be u8 or f32, not {}", step,
          name_of(image.dtype()));
  Tensor out(DType::F32, image.shape());
  image_loops().widen(image.values<std::uint8_t>().data(), out.values<float>().size(),
                      out.values<float>().data());
  return out;
}

// Transposes a row-major matrix of `rows` × `columns` elements.
Tensor transposed(const Tensor& image, std::size_t rows, std::size_t columns, Shape shape) {
  Tensor out(image.dtype(), std::move(shape));
  const std::size_t size = size_of(image.dtype());
  for (std::size_t row = 0; row < rows; ++row) {
    for (std::size_t column = 0; column < columns; ++column) {
      std::memcpy(out.raw() + (column * rows + row) * size,
                  image.raw() + (row * columns + column) * size, size);
    }
  }
  return out;
}

}  // namespace

Tensor crop_image(const Tensor& image, const ImageRegion& region) {
  expect_image(image, "crop_image");
  require(region.x >= 0 && region.y >= 0 && region.width > 0 && region.height > 0 &&
              region.width <= image.shape()[1] - region.x &&
              region.height <= image.shape()[0] - region.y,
          "[crop_image] the region {}x{} at ({}, {}) is not inside an image of shape {}",
          region.width, region.height, region.x, region.y, image.shape());
  Tensor out(image.dtype(), {region.height, region.width, image.shape()[2]});
  const std::size_t pixel = extent(image, 2) * size_of(image.dtype());
  const std::size_t row = static_cast<std::size_t>(region.width) * pixel;
  for (std::size_t y = 0; y < extent(out, 0); ++y) {
    const std::size_t at = ((static_cast<std::size_t>(region.y) + y) * extent(image, 1) +
                            static_cast<std::size_t>(region.x)) *
                           pixel;
    if (row > 0) std::memcpy(out.raw() + y * row, image.raw() + at, row);
  }
  return out;
}

Tensor mirror_image(const Tensor& image) {
  expect_image(image, "mirror_image");
  Tensor out(image.dtype(), image.shape());
  const std::size_t pixel = extent(image, 2) * size_of(image.dtype());
  const std::size_t width = extent(image, 1);
  for (std::size_t y = 0; pixel > 0 && y < extent(image, 0); ++y) {
    for (std::size_t x = 0; x < width; ++x) {
      std::memcpy(out.raw() + (y * width + x) * pixel,
                  image.raw() + (y * width + width - 1 - x) * pixel, pixel);
    }
  }
  return out;
}

Tensor normalize_image(const Tensor& image, const Normalization& options) {
  expect_image(image, "normalize_image");
  const std::size_t channels = extent(image, 2);
  const auto fits = [channels](std::span<const float> values) {
    return values.empty() || values.size() == channels;
  };
  require(fits(options.mean) && fits(options.deviation),
          "[normalize_image] {} means and {} deviations for {} channels", options.mean.size(),
          options.deviation.size(), channels);
  const Tensor floats = as_f32(image, "normalize_image");
  Tensor out(DType::F32, image.shape());
  const std::span<const float> from = floats.values<float>();
  const std::span<float> to = out.values<float>();
  for (std::size_t c = 0; c < channels; ++c) {
    const float deviation = options.deviation.empty() ? 1 : options.deviation[c];
    require(deviation != 0, "[normalize_image] the deviation of channel {} is 0", c);
    const float scale = options.rescale / deviation;
    const float bias = options.mean.empty() ? 0 : -options.mean[c] / deviation;
    for (std::size_t i = c; i < to.size(); i += channels) to[i] = from[i] * scale + bias;
  }
  return out;
}

Tensor convert_image(const Tensor& image, DType dtype) {
  if (image.dtype() == dtype) return image;
  const Tensor floats = as_f32(image, "convert_image");
  if (dtype == DType::F32) return floats;
  require(dtype == DType::U8 || dtype == DType::F16 || dtype == DType::BF16,
          "[convert_image] the dtype must be u8, f32, f16 or bf16, not {}", name_of(dtype));
  Tensor out(dtype, image.shape());
  const std::span<const float> from = floats.values<float>();
  if (dtype == DType::U8) {
    image_loops().to_bytes(from.data(), from.size(), out.values<std::uint8_t>().data());
  } else {
    auto* bits = reinterpret_cast<std::uint16_t*>(out.raw());
    const auto convert = dtype == DType::F16 ? image_loops().to_f16 : image_loops().to_bf16;
    convert(from.data(), from.size(), bits);
  }
  return out;
}

Tensor to_chw(const Tensor& image) {
  expect_image(image, "to_chw");
  const Shape& shape = image.shape();
  return transposed(image, extent(image, 0) * extent(image, 1), extent(image, 2),
                    {shape[2], shape[0], shape[1]});
}

Tensor to_hwc(const Tensor& image) {
  expect_image(image, "to_hwc");
  const Shape& shape = image.shape();
  return transposed(image, extent(image, 0), extent(image, 1) * extent(image, 2),
                    {shape[1], shape[2], shape[0]});
}

Tensor jitter_colors(const Tensor& image, const ColorJitterDraw& draw) {
  expect_image(image, "jitter_colors");
  require(image.shape()[2] == 3, "[jitter_colors] needs three channels, not {}", image.shape()[2]);
  const Tensor floats = as_f32(image, "jitter_colors");
  const ImageLoops& loops = image_loops();
  const std::size_t pixels = extent(image, 0) * extent(image, 1);
  std::vector<float> planes(3 * pixels);
  float* const red = planes.data();
  float* const green = red + pixels;
  float* const blue = green + pixels;
  loops.split(floats.values<float>().data(), pixels, red, green, blue);
  apply_color_jitter(draw, red, green, blue, pixels, loops);
  Tensor out(DType::F32, image.shape());
  constexpr std::array<float, 3> kOne = {1, 1, 1};
  constexpr std::array<float, 3> kZero = {0, 0, 0};
  loops.join(red, green, blue, kOne.data(), kZero.data(), pixels, out.values<float>().data());
  return convert_image(out, image.dtype());
}

}  // namespace lockstep
