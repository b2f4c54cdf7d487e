#include "lockstep/data/image/crop.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep {

namespace {

ImageRegion centred(const ImageInfo& info, int width, int height) {
  return {.x = (info.width - width) / 2,
          .y = (info.height - height) / 2,
          .width = width,
          .height = height};
}

// Uniform in [0, bound].
int up_to(int bound, RandomSequence& random) {
  return static_cast<int>(random.below(static_cast<std::uint64_t>(bound) + 1));
}

}  // namespace

void check(const RandomResizedCrop& options) {
  require(0 < options.min_area && options.min_area <= options.max_area && options.max_area <= 1,
          "[random_resized_crop] the area must be in (0, 1], not {} to {}", options.min_area,
          options.max_area);
  require(0 < options.min_ratio && options.min_ratio <= options.max_ratio,
          "[random_resized_crop] the ratio of width to height must be positive, not {} to {}",
          options.min_ratio, options.max_ratio);
  require(options.tries >= 0, "[random_resized_crop] .tries must be 0 or more, not {}",
          options.tries);
}

ImageRegion random_resized_crop(const ImageInfo& info, const RandomResizedCrop& options,
                                RandomSequence& random) {
  const double pixels = static_cast<double>(info.width) * info.height;
  const double low = std::log(options.min_ratio);
  const double high = std::log(options.max_ratio);
  for (int i = 0; i < options.tries; ++i) {
    const double area =
        pixels * (options.min_area + (options.max_area - options.min_area) * random.uniform());
    const double ratio = std::exp(low + (high - low) * random.uniform());
    const double width = std::nearbyint(std::sqrt(area * ratio));
    const double height = std::nearbyint(std::sqrt(area / ratio));
    if (width < 1 || height < 1 || width > info.width || height > info.height) continue;
    ImageRegion region{
        .x = 0, .y = 0, .width = static_cast<int>(width), .height = static_cast<int>(height)};
    region.y = up_to(info.height - region.height, random);
    region.x = up_to(info.width - region.width, random);
    return region;
  }
  const double ratio = static_cast<double>(info.width) / info.height;
  int width = info.width;
  int height = info.height;
  if (ratio < options.min_ratio) {
    height = static_cast<int>(std::nearbyint(width / static_cast<double>(options.min_ratio)));
  } else if (ratio > options.max_ratio) {
    width = static_cast<int>(std::nearbyint(height * static_cast<double>(options.max_ratio)));
  }
  return centred(info, std::clamp(width, 1, info.width), std::clamp(height, 1, info.height));
}

ImageRegion crop_to_aspect(const ImageInfo& info, int width, int height, double fraction) {
  require(width > 0 && height > 0 && fraction > 0 && fraction <= 1,
          "[crop_to_aspect] the size {}x{} must be positive and the fraction {} in (0, 1]", width,
          height, fraction);
  const auto cut = [fraction](int size, std::int64_t wanted) {
    const auto kept = static_cast<double>(std::min<std::int64_t>(size, wanted));
    return std::max(1, static_cast<int>(fraction == 1 ? kept : std::nearbyint(kept * fraction)));
  };
  return centred(info, cut(info.width, std::int64_t{info.height} * width / height),
                 cut(info.height, std::int64_t{info.width} * height / width));
}

}  // namespace lockstep
