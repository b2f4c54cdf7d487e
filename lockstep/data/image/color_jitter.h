// Random changes of brightness, contrast, saturation and hue, as in
// torchvision.transforms.ColorJitter: each with a random strength, in a random order.
#pragma once

#include <array>

#include "lockstep/base/random.h"
#include "lockstep/data/image/loops.h"

namespace lockstep {

// The strengths: a factor is drawn from [max(0, 1 - strength), 1 + strength]; the hue is rotated by
// [-hue, hue] of a full circle, hue ≤ 1/2. 0: unchanged.
struct ColorJitter {
  float brightness = 0;
  float contrast = 0;
  float saturation = 0;
  float hue = 0;
  bool any() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

// UsageError for a negative strength or a hue above 1/2.
void check(const ColorJitter& options);

enum class ColorChange : std::uint8_t { Brightness, Contrast, Saturation, Hue };

// The random choices for one image.
struct ColorJitterDraw {
  std::array<ColorChange, 4> order = {ColorChange::Brightness, ColorChange::Contrast,
                                      ColorChange::Saturation, ColorChange::Hue};
  float brightness = 1;
  float contrast = 1;
  float saturation = 1;
  float hue = 0;
};

// Draws the same number of random values whatever the options.
ColorJitterDraw draw_color_jitter(const ColorJitter& options, RandomSequence& random);

// Applies the choices to planes of `count` values in [0, 255] each.
void apply_color_jitter(const ColorJitterDraw& draw, float* red, float* green, float* blue,
                        std::size_t count, const ImageLoops& loops = image_loops());

}  // namespace lockstep
