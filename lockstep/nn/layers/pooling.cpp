#include "lockstep/nn/layers/pooling.h"

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/pool.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/nn/layers/argument.h"
#include "lockstep/nn/naming.h"

namespace lockstep {
namespace {

using PoolFunction = Value (*)(Value x, PoolOptions options);

class PoolLayer final : public LayerBase {
 public:
  PoolLayer(std::string kind, PoolFunction pool, Pooling2DOptions options)
      : kind_(std::move(kind)), pool_(pool), options_(std::move(options)) {
    const Pair strides = options_.strides.value_or(options_.pool_size);
    require(options_.pool_size.height > 0 && options_.pool_size.width > 0 && strides.height > 0 &&
                strides.width > 0,
            "[{}] pool_size and strides must be above 0, got {} × {} and {} × {}",
            snake_case(kind_), options_.pool_size.height, options_.pool_size.width, strides.height,
            strides.width);
  }
  std::string kind() const override { return kind_; }

  Value call(std::span<const Value> inputs, const CallOptions&) override {
    const Value x = only(inputs);
    require_images(x.type());
    require_floats(x.type());
    const Pair strides = options_.strides.value_or(options_.pool_size);
    return pool_(x, {.window = options_.pool_size.array(),
                     .strides = strides.array(),
                     .padding = options_.padding.resolve(x.shape(), options_.pool_size, strides)});
  }

 private:
  std::string kind_;
  PoolFunction pool_;
  Pooling2DOptions options_;
};

using ReduceFunction = Value (*)(Value x, ReduceOptions options);

class GlobalPoolLayer final : public LayerBase {
 public:
  GlobalPoolLayer(std::string kind, ReduceFunction reduce, bool keepdims)
      : kind_(std::move(kind)), reduce_(reduce), keepdims_(keepdims) {}
  std::string kind() const override { return kind_; }
  Value call(std::span<const Value> inputs, const CallOptions&) override {
    const Value x = only(inputs);
    require_images(x.type());
    require_floats(x.type());
    return reduce_(x, {.axes = {1, 2}, .keepdims = keepdims_});
  }

 private:
  std::string kind_;
  ReduceFunction reduce_;
  bool keepdims_;
};

}  // namespace

MaxPooling2D::MaxPooling2D(Pooling2DOptions options)
    : Layer(make_named_layer<PoolLayer>(options.name, "MaxPooling2D", max_pool, options)) {}

AveragePooling2D::AveragePooling2D(Pooling2DOptions options)
    : Layer(make_named_layer<PoolLayer>(options.name, "AveragePooling2D", avg_pool, options)) {}

MaxPooling2D::MaxPooling2D(Pair pool_size, Pooling2DOptions options)
    : MaxPooling2D(with_argument("max_pooling2d", "pool_size", &Pooling2DOptions::pool_size,
                                 pool_size, std::move(options))) {}

AveragePooling2D::AveragePooling2D(Pair pool_size, Pooling2DOptions options)
    : AveragePooling2D(with_argument("average_pooling2d", "pool_size", &Pooling2DOptions::pool_size,
                                     pool_size, std::move(options))) {}

GlobalAveragePooling2D::GlobalAveragePooling2D(GlobalPooling2DOptions options)
    : Layer(make_named_layer<GlobalPoolLayer>(options.name, "GlobalAveragePooling2D", reduce_mean,
                                              options.keepdims)) {}

GlobalMaxPooling2D::GlobalMaxPooling2D(GlobalPooling2DOptions options)
    : Layer(make_named_layer<GlobalPoolLayer>(options.name, "GlobalMaxPooling2D", reduce_max,
                                              options.keepdims)) {}

}  // namespace lockstep
