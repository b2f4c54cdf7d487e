#include "lockstep/data/image/resize.h"

#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep {

Tensor Resizer::resize(const Tensor& image, int height, int width, const ResizeOptions& options) {
  require(image.shape().rank() == 3, "[resize] an image is (height, width, channels), not {}",
          image.shape());
  require(height > 0 && width > 0, "[resize] a size of {}x{} has no pixels", height, width);
  Tensor out(options.dtype, {height, width, image.shape()[2]});
  resize_into(image, out, options);
  return out;
}

void Resizer::resize_into(const Tensor& image, Tensor& out, const ResizeOptions& options) {
  const Shape& from = image.shape();
  const Shape& to = out.shape();
  require(from.rank() == 3 && to.rank() == 3 && from[2] == to[2],
          "[resize] (height, width, channels) {} cannot become {}", from, to);
  require(from.elements() > 0 && to.elements() > 0, "[resize] {} to {}: one has no pixels", from,
          to);
  for (const DType dtype : {image.dtype(), out.dtype()}) {
    require(dtype == DType::U8 || dtype == DType::F32, "[resize] images must be u8 or f32, not {}",
            name_of(dtype));
  }
  const int channels = static_cast<int>(from[2]);
  const AxisOptions axis{.interpolation = options.interpolation, .antialias = options.antialias};
  rows_.fill(whole_axis(static_cast<int>(from[0])), static_cast<int>(to[0]), axis);
  columns_.fill(whole_axis(static_cast<int>(from[1])), static_cast<int>(to[1]), axis);

  const auto source_row = static_cast<std::size_t>(from[1] * channels);
  const auto result_row = static_cast<std::size_t>(to[1] * channels);
  const auto slots = static_cast<std::size_t>(rows_.taps());
  if (image.dtype() == DType::U8) {
    widened_.resize(slots);
    for (auto& row : widened_) row.resize(source_row);
    widened_row_.assign(slots, -1);
  }
  taps_.resize(slots);
  blended_.resize(source_row);
  result_.resize(result_row);
  for (int y = 0; y < rows_.outputs(); ++y) {
    for (int k = 0; k < rows_.taps(); ++k) {
      taps_[static_cast<std::size_t>(k)] = float_row(image, rows_.first(y) + k);
    }
    loops_->blend_float_rows(taps_.data(), rows_.weights(y).data(), rows_.taps(), source_row,
                             blended_.data());
    const std::size_t at = static_cast<std::size_t>(y) * result_row;
    if (out.dtype() == DType::F32) {
      loops_->blend_float_columns(blended_.data(), columns_, channels,
                                  out.values<float>().data() + at);
    } else {
      loops_->blend_float_columns(blended_.data(), columns_, channels, result_.data());
      loops_->to_bytes(result_.data(), result_row, out.values<std::uint8_t>().data() + at);
    }
  }
}

const float* Resizer::float_row(const Tensor& image, int row) {
  const auto elements = static_cast<std::size_t>(image.shape()[1] * image.shape()[2]);
  const std::size_t at = static_cast<std::size_t>(row) * elements;
  if (image.dtype() == DType::F32) return image.values<float>().data() + at;
  const std::size_t slot = static_cast<std::size_t>(row) % widened_.size();
  if (widened_row_[slot] != row) {
    loops_->widen(image.values<std::uint8_t>().data() + at, elements, widened_[slot].data());
    widened_row_[slot] = row;
  }
  return widened_[slot].data();
}

Tensor resize_image(const Tensor& image, int height, int width, const ResizeOptions& options) {
  return Resizer().resize(image, height, width, options);
}

}  // namespace lockstep
