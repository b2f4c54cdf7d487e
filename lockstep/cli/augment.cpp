#include "lockstep/cli/augment.h"

#include <algorithm>
#include <cstring>

#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

constexpr const char* kNames[] = {"none", "flip", "crop", "strong"};
constexpr float kMirror = 0.5f;
constexpr ColorJitter kColours = {
    .brightness = 0.4f, .contrast = 0.4f, .saturation = 0.4f, .hue = 0.1f};
constexpr std::int64_t kShiftPart = 8;  // the shift is at most 1/8 of a side: 4 of 32 pixels

// Copies a picture (h, w, c), mirrored if asked, shifted by (down, right) and padded with zeros.
void move_picture(const Tensor& from, Tensor& to, std::int64_t down, std::int64_t right,
                  bool mirrored) {
  const std::int64_t height = from.shape()[0];
  const std::int64_t width = from.shape()[1];
  const auto pixel = static_cast<std::size_t>(from.shape()[2]) * size_of(from.dtype());
  std::memset(to.raw(), 0, to.bytes());
  for (std::int64_t y = std::max<std::int64_t>(0, down); y < std::min(height, height + down); ++y) {
    for (std::int64_t x = 0; x < width; ++x) {
      const std::int64_t source = (mirrored ? width - 1 - x : x) - right;
      if (source < 0 || source >= width) continue;
      std::memcpy(to.raw() + static_cast<std::size_t>(y * width + x) * pixel,
                  from.raw() + static_cast<std::size_t>((y - down) * width + source) * pixel,
                  pixel);
    }
  }
}

}  // namespace

std::string augment_names() {
  return "none, flip, crop, strong";
}

Augment augment_by_name(const std::string& name) {
  const auto* found = std::ranges::find(kNames, name);
  require(found != std::end(kNames), "--augment {}: use one of {}", name, augment_names());
  return static_cast<Augment>(found - std::begin(kNames));
}

void augment(ImageReaderOptions& reader, Augment how) {
  if (how == Augment::None) return;
  reader.mirror_probability = kMirror;
  if (how == Augment::Flip) return;
  reader.crop = ImageCrop::Random;
  reader.crop_fraction = 1.0;
  if (how == Augment::Strong) reader.color_jitter = kColours;
}

Dataset augmented(const Dataset& samples, Augment how, std::uint64_t seed) {
  if (how == Augment::None) return samples;
  require(how != Augment::Strong,
          "--augment strong needs pictures in files; use flip or crop for these samples");
  const std::vector<ElementSpec> spec = samples.element_spec();
  const Shape& shape = spec.at(0).shape;
  require(shape.rank() == 3, "--augment: samples of shape {} are not pictures", shape);
  const std::int64_t reach =
      how == Augment::Crop ? std::max<std::int64_t>(1, shape[0] / kShiftPart) : 0;
  const auto vary = [reach](const Element& element, RandomSequence& random, std::span<Tensor> to) {
    const auto draw = [&] {
      return static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(2 * reach + 1))) -
             reach;
    };
    const std::int64_t down = draw();
    const std::int64_t right = draw();
    move_picture(element[0], to[0], down, right, random.below(2) == 1);
    for (std::size_t i = 1; i < to.size(); ++i) to[i].copy_from(element[i]);
  };
  return samples.map_into(vary,
                          {.spec = spec, .parallel = AUTOTUNE, .seed = seed, .name = "augment"});
}

}  // namespace lockstep::cli
