#include "lockstep/nn/layers/reshape.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/shape.h"
#include "lockstep/nn/layers/argument.h"

namespace lockstep {
namespace {

class FlattenLayer final : public LayerBase {
 public:
  std::string kind() const override { return "Flatten"; }
  Value call(std::span<const Value> inputs, const CallOptions&) override {
    const Value x = only(inputs);
    std::int64_t features = 1;
    for (int axis = 1; axis < x.shape().rank(); ++axis) features *= x.shape()[axis];
    return reshape(x, Ints{x.shape()[0], features});
  }
};

class ReshapeLayer final : public LayerBase {
 public:
  explicit ReshapeLayer(Ints shape) : shape_(std::move(shape)) {
    require(std::ranges::count(shape_, -1) <= 1 &&
                std::ranges::all_of(shape_, [](std::int64_t extent) { return extent >= -1; }),
            "[reshape] ({}) is not a shape: extents are 0 or more, and one may be -1",
            fmt::join(shape_, ", "));
  }
  std::string kind() const override { return "Reshape"; }
  // Computed without the batch, so that an empty batch works too.
  Value call(std::span<const Value> inputs, const CallOptions&) override {
    const Value x = only(inputs);
    std::int64_t elements = 1, known = 1;
    for (int axis = 1; axis < x.shape().rank(); ++axis) elements *= x.shape()[axis];
    for (std::int64_t extent : shape_) known *= extent == -1 ? 1 : extent;
    const bool open = std::ranges::count(shape_, -1) == 1;
    require(open ? known > 0 && elements % known == 0 : elements == known,
            "{}the {} elements of a sample {} do not fill (None, {})", where(), elements,
            shape_without_batch(x.shape()), fmt::join(shape_, ", "));
    Ints target = {x.shape()[0]};
    for (std::int64_t extent : shape_) target.push_back(extent == -1 ? elements / known : extent);
    return reshape(x, std::move(target));
  }

 private:
  Ints shape_;
};

class ZeroPaddingLayer final : public LayerBase {
 public:
  explicit ZeroPaddingLayer(PaddingOption padding) : padding_(std::move(padding)) {
    require(padding_.is_explicit(),
            "[zero_padding2d] the padding must be given in numbers, not as \"{}\"", padding_.kind);
  }
  std::string kind() const override { return "ZeroPadding2D"; }
  Value call(std::span<const Value> inputs, const CallOptions&) override {
    const Value x = only(inputs);
    require_images(x.type());
    const auto [top, bottom, left, right] = padding_.amounts;
    return pad(x, Ints{0, top, left, 0}, Ints{0, bottom, right, 0});
  }

 private:
  PaddingOption padding_;
};

}  // namespace

Flatten::Flatten(FlattenOptions options) : Layer(make_named_layer<FlattenLayer>(options.name)) {}

Reshape::Reshape(ReshapeOptions options)
    : Layer(make_named_layer<ReshapeLayer>(options.name, std::move(options.target_shape))) {}

ZeroPadding2D::ZeroPadding2D(ZeroPadding2DOptions options)
    : Layer(make_named_layer<ZeroPaddingLayer>(options.name, std::move(options.padding))) {}

Reshape::Reshape(Extents target_shape, ReshapeOptions options)
    : Reshape(with_argument("reshape", "target_shape", &ReshapeOptions::target_shape,
                            target_shape.values, std::move(options))) {}

ZeroPadding2D::ZeroPadding2D(PaddingOption padding, ZeroPadding2DOptions options)
    : ZeroPadding2D(with_argument("zero_padding2d", "padding", &ZeroPadding2DOptions::padding,
                                  padding, std::move(options))) {}

}  // namespace lockstep
