// Random changes of brightness, contrast, saturation and hue, as torchvision.transforms.ColorJitter
// makes them: each with a random strength, in a random order.
#pragma once

#include <array>

#include "lockstep/base/random.h"
#include "lockstep/data/image/loops.h"

namespace lockstep {

// The strengths: a factor is drawn from [max(0, 1 - strength), 1 + strength]; for the hue, a turn
// from [-hue, hue] of the circle, hue ≤ 1/2. 0: unchanged.
struct ColorJitter {
  float brightness = 0;
  float contrast = 0;
  float saturation = 0;
  float hue = 0;
  bool any() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

// UsageError for a negative strength or a hue over a half.
void check(const ColorJitter& options);

enum class ColorChange : std::uint8_t { Brightness, Contrast, Saturation, Hue };

// What was drawn.
struct ColorJitterDraw {
  std::array<ColorChange, 4> order = {ColorChange::Brightness, ColorChange::Contrast,
                                      ColorChange::Saturation, ColorChange::Hue};
  float brightness = 1;
  float contrast = 1;
  float saturation = 1;
  float hue = 0;
};

// Draws as many numbers whatever the options.
ColorJitterDraw draw_color_jitter(const ColorJitter& options, RandomSequence& random);

// Applies it to planes of `count` values in [0, 255] each.
void apply_color_jitter(const ColorJitterDraw& draw, float* red, float* green, float* blue,
                        std::size_t count, const ImageLoops& loops = image_loops());

}  // namespace lockstep
