// Operations on decoded pictures.
#include "conformance/driver/case.h"
#include "lockstep/data/image/resize.h"
#include "lockstep/data/image/transform.h"

namespace conformance {
namespace {

ls::ColorJitterDraw draw_of(const Case& c) {
  ls::ColorJitterDraw draw;
  draw.brightness = c.option("brightness", 1.0f);
  draw.contrast = c.option("contrast", 1.0f);
  draw.saturation = c.option("saturation", 1.0f);
  draw.hue = c.option("hue", 0.0f);
  static const std::map<std::string, ls::ColorChange> changes = {
      {"brightness", ls::ColorChange::Brightness},
      {"contrast", ls::ColorChange::Contrast},
      {"saturation", ls::ColorChange::Saturation},
      {"hue", ls::ColorChange::Hue}};
  const auto order = c.option("order", std::vector<std::string>{});
  for (std::size_t i = 0; i < order.size(); ++i) draw.order[i] = changes.at(order[i]);
  return draw;
}

ls::Tensor changed(const Case& c) {
  const ls::Tensor& image = c.input("image");
  if (c.what == "resize") {
    return ls::resize_image(
        image, c.options.at("height"), c.options.at("width"),
        {.interpolation = ls::interpolation_named(c.option<std::string>("method", "bilinear")),
         .antialias = c.option("antialias", false)});
  }
  if (c.what == "crop") {
    return ls::crop_image(image, {.x = c.options.at("x"),
                                  .y = c.options.at("y"),
                                  .width = c.options.at("width"),
                                  .height = c.options.at("height")});
  }
  if (c.what == "mirror") return ls::mirror_image(image);
  if (c.what == "normalize") {
    const auto mean = c.option("mean", std::vector<float>{});
    const auto deviation = c.option("deviation", std::vector<float>{});
    return ls::normalize_image(
        image, {.rescale = c.option("rescale", 1.0f), .mean = mean, .deviation = deviation});
  }
  if (c.what == "to_u8") return ls::convert_image(image, ls::DType::U8);
  if (c.what == "to_chw") return ls::to_chw(image);
  if (c.what == "to_hwc") return ls::to_hwc(image);
  if (c.what == "jitter") return ls::jitter_colors(image, draw_of(c));
  unknown(c);
}

}  // namespace

Tensors run_image(const Case& c) {
  return {{"image", changed(c)}};
}

}  // namespace conformance
