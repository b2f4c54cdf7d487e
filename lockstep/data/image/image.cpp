#include "lockstep/data/image/image.h"

#include "lockstep/base/error.h"

namespace lockstep {

std::string_view name_of(ImageFormat format) {
  return format == ImageFormat::Jpeg ? "jpeg" : "png";
}

int channels_of(ColorMode mode) {
  switch (mode) {
    case ColorMode::Grayscale:
      return 1;
    case ColorMode::Rgb:
      return 3;
    case ColorMode::Rgba:
      return 4;
  }
  fail<InternalError>("[image] unknown colour mode {}", static_cast<int>(mode));
}

ColorMode color_mode_named(std::string_view name) {
  if (name == "grayscale") return ColorMode::Grayscale;
  if (name == "rgb") return ColorMode::Rgb;
  if (name == "rgba") return ColorMode::Rgba;
  fail<UsageError>("[image] the colour mode must be grayscale, rgb or rgba, not '{}'", name);
}

}  // namespace lockstep
