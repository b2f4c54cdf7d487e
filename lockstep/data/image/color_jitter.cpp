#include "lockstep/data/image/color_jitter.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

void check(const ColorJitter& options) {
  for (const float strength : {options.brightness, options.contrast, options.saturation}) {
    require(strength >= 0, "[color_jitter] strengths must be 0 or more, not {}", strength);
  }
  require(options.hue >= 0 && options.hue <= 0.5f,
          "[color_jitter] .hue must be from 0 to 0.5, not {}", options.hue);
}

ColorJitterDraw draw_color_jitter(const ColorJitter& options, RandomSequence& random) {
  ColorJitterDraw draw;
  for (std::size_t i = draw.order.size() - 1; i > 0; --i) {
    // 2 and 4 divide 2^32, and the bias for 3 is of the order of 2^-32.
    const std::size_t other = (std::uint64_t{random.next()} * (i + 1)) >> 32;
    std::swap(draw.order[i], draw.order[other]);
  }
  const auto between = [&random](float low, float high) {
    return low + (high - low) * random.uniform();
  };
  const auto factor = [&between](float strength) {
    return between(std::max(0.0f, 1 - strength), 1 + strength);
  };
  draw.brightness = factor(options.brightness);
  draw.contrast = factor(options.contrast);
  draw.saturation = factor(options.saturation);
  draw.hue = between(-options.hue, options.hue);
  return draw;
}

void apply_color_jitter(const ColorJitterDraw& draw, float* red, float* green, float* blue,
                        std::size_t count, const ImageLoops& loops) {
  for (const ColorChange change : draw.order) {
    switch (change) {
      case ColorChange::Brightness:
        if (draw.brightness == 1) break;
        for (float* plane : {red, green, blue}) loops.brightness(plane, draw.brightness, count);
        break;
      case ColorChange::Contrast: {
        if (draw.contrast == 1 || count == 0) break;
        const double mean = loops.sum_of_gray(red, green, blue, count) / static_cast<double>(count);
        for (float* plane : {red, green, blue}) {
          loops.contrast(plane, static_cast<float>(mean), draw.contrast, count);
        }
        break;
      }
      case ColorChange::Saturation:
        if (draw.saturation != 1) loops.saturation(red, green, blue, draw.saturation, count);
        break;
      case ColorChange::Hue:
        if (draw.hue != 0) loops.hue(red, green, blue, draw.hue, count);
        break;
    }
  }
}

}  // namespace lockstep
