// Basic types for images: formats, colour modes, layouts and regions.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep {

enum class ImageFormat : std::uint8_t { Jpeg, Png };

// "jpeg", "png": the spelling used in messages.
std::string_view name_of(ImageFormat format);

// The channels to decode, with Keras's names: 1, 3 or 4 bytes per pixel.
enum class ColorMode : std::uint8_t { Grayscale, Rgb, Rgba };

int channels_of(ColorMode mode);

// "grayscale", "rgb", "rgba"; UsageError for any other.
ColorMode color_mode_named(std::string_view name);

// The order of a sample's elements: height, width, channels, or channels first.
enum class ImageLayout : std::uint8_t { Hwc, Chw };

// What the header of a file says. Orientation tags (EXIF) are ignored, as in Keras.
struct ImageInfo {
  ImageFormat format = ImageFormat::Jpeg;
  int width = 0;
  int height = 0;
  // As stored: 1 grey, 2 grey and alpha, 3 colour or palette, 4 colour and alpha or CMYK.
  int channels = 0;
  int bits = 8;              // per channel
  bool progressive = false;  // JPEG in several scans; interlaced PNG
};

// A rectangle of pixels.
struct ImageRegion {
  int x = 0;
  int y = 0;
  int width = 0;
  int height = 0;
  bool operator==(const ImageRegion&) const = default;
};

inline ImageRegion whole(const ImageInfo& info) {
  return {.x = 0, .y = 0, .width = info.width, .height = info.height};
}

// The grey value of a colour by Rec. 601.
inline std::uint8_t luminance(int red, int green, int blue) {
  return static_cast<std::uint8_t>((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16);
}

}  // namespace lockstep
