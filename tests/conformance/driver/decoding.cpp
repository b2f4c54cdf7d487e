// Decoding of picture files.
#include "conformance/driver/case.h"
#include "lockstep/data/image/decode.h"

namespace conformance {

// Input: file (u8), the bytes of a JPEG or PNG. Result: pixels (height, width, channels).
Tensors run_decoding(const Case& c) {
  const ls::Tensor& file = c.input("file");
  ls::DecodeOptions options;
  options.color_mode = ls::color_mode_named(c.option<std::string>("color_mode", "rgb"));
  options.fast_dct = c.option("fast_dct", false);
  options.at_least_width = c.option("at_least_width", 0);
  options.at_least_height = c.option("at_least_height", 0);
  if (c.options.contains("region")) {
    const Json& region = c.options["region"];
    options.region =
        ls::ImageRegion{.x = region[0], .y = region[1], .width = region[2], .height = region[3]};
  }
  ls::ImageDecoder decoder;
  const auto* bytes = reinterpret_cast<const std::byte*>(file.raw());
  return {{"pixels", decoder.decode({bytes, file.bytes()}, c.name, options)}};
}

}  // namespace conformance
