#include "lockstep/nn/layers/pooling.h"

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/pool.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/nn/naming.h"

namespace lockstep {
namespace {

using PoolFunction = Value (*)(Value x, PoolOptions options);

class PoolLayer final : public LayerBase {
 public:
  PoolLayer(std::string kind, PoolFunction pool, Pool2DOptions options)
      : kind_(std::move(kind)), pool_(pool), options_(std::move(options)) {
    const Pair stride = options_.stride.value_or(options_.pool);
    require(options_.pool.height > 0 && options_.pool.width > 0 && stride.height > 0 &&
                stride.width > 0,
            "[{}] pool and stride must be above 0, got {} × {} and {} × {}", snake_case(kind_),
            options_.pool.height, options_.pool.width, stride.height, stride.width);
  }
  std::string kind() const override { return kind_; }

  Value call(std::span<const Value> inputs, const CallOptions&) override {
    const Value x = only(inputs);
    require_images(x.type());
    require_floats(x.type());
    const Pair stride = options_.stride.value_or(options_.pool);
    return pool_(x, {.window = options_.pool.array(),
                     .strides = stride.array(),
                     .padding = options_.padding.resolve(x.shape(), options_.pool, stride)});
  }

 private:
  std::string kind_;
  PoolFunction pool_;
  Pool2DOptions options_;
};

class GlobalAverageLayer final : public LayerBase {
 public:
  explicit GlobalAverageLayer(bool keepdims) : keepdims_(keepdims) {}
  std::string kind() const override { return "GlobalAveragePooling2D"; }
  Value call(std::span<const Value> inputs, const CallOptions&) override {
    const Value x = only(inputs);
    require_images(x.type());
    require_floats(x.type());
    return reduce_mean(x, {.axes = {1, 2}, .keepdims = keepdims_});
  }

 private:
  bool keepdims_;
};

}  // namespace

MaxPool2D::MaxPool2D(Pool2DOptions options)
    : Layer(make_named_layer<PoolLayer>(options.name, "MaxPooling2D", max_pool, options)) {}

AveragePooling2D::AveragePooling2D(Pool2DOptions options)
    : Layer(make_named_layer<PoolLayer>(options.name, "AveragePooling2D", avg_pool, options)) {}

GlobalAveragePooling2D::GlobalAveragePooling2D(GlobalPool2DOptions options)
    : Layer(make_named_layer<GlobalAverageLayer>(options.name, options.keepdims)) {}

}  // namespace lockstep
