#include "lockstep/graph/ops/pool.h"

#include "lockstep/graph/ops/placement_rules.h"
#include "lockstep/graph/ops/rules.h"

namespace lockstep {
namespace {

Attrs pool_attrs(const PoolOptions& options) {
  return {{"window", Ints(options.window.begin(), options.window.end())},
          {"strides", Ints(options.strides.begin(), options.strides.end())},
          {"padding", Ints(options.padding.begin(), options.padding.end())}};
}

// The result's shape. Padding stays below the window's extent, so that every window holds an
// element of the image.
Shape pool_shape(const Shape& x, const Attrs& attrs) {
  require(x.rank() == 4, "the image must be (N, H, W, C), not {}", x);
  std::array<std::int64_t, 2> extents{};
  for (int i = 0; i < 2; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t window = attrs.ints("window")[at];
    const std::int64_t stride = attrs.ints("strides")[at];
    const std::int64_t before = attrs.ints("padding")[2 * at];
    const std::int64_t after = attrs.ints("padding")[2 * at + 1];
    require(window >= 1 && stride >= 1, "window {} and stride {} must be at least 1", window,
            stride);
    require(before >= 0 && after >= 0 && before < window && after < window,
            "padding {} and {} must be at least 0 and less than the window, {}", before, after,
            window);
    const std::int64_t padded = x[i + 1] + before + after;
    require(window <= padded && x[i + 1] > 0,
            "the {} of the window, {}, is more than that of the padded image, {}: image {}",
            i == 0 ? "height" : "width", window, padded, x);
    extents[at] = (padded - window) / stride + 1;
  }
  return {x[0], extents[0], extents[1], x[3]};
}

std::int64_t window_size(const Attrs& attrs) {
  return attrs.ints("window")[0] * attrs.ints("window")[1];
}

DType index_dtype(const Attrs& attrs) {
  return window_size(attrs) <= 255 ? DType::U8 : DType::I32;
}

std::vector<ValueType> infer_max_pool(const OpCall& call) {
  require_floating(call, 0, "the image");
  return max_pool_types(call.inputs[0], call.attrs);
}

std::vector<ValueType> infer_avg_pool(const OpCall& call) {
  require_floating(call, 0, "the image");
  return {{call.dtype(0), pool_shape(call.shape(0), call.attrs)}};
}

std::vector<ValueType> infer_grad(const OpCall& call) {
  const Shape x{call.attrs.ints("input_shape")};
  const Shape expected = pool_shape(x, call.attrs);
  require(call.shape(0) == expected, "the gradient is {}, but the image {} gives {}", call.shape(0),
          x, expected);
  return {{call.dtype(0), x}};
}

std::vector<ValueType> infer_max_pool_grad(const OpCall& call) {
  require_type(call, 1, {index_dtype(call.attrs), call.shape(0)}, "the argmax indices");
  return infer_grad(call);
}

Attrs with_input_shape(const GradCall& call) {
  Attrs attrs = call.attrs;
  const auto dims = call.inputs[0].shape().dims();
  attrs.set("input_shape", Ints(dims.begin(), dims.end()));
  return attrs;
}

std::vector<Value> gradient_max_pool(const GradCall& call) {
  return {
      call.graph.add1(Op::MaxPoolGrad, {call.grads[0], call.outputs[1]}, with_input_shape(call))};
}

std::vector<Value> gradient_avg_pool(const GradCall& call) {
  return {call.graph.add1(Op::AvgPoolGrad, {call.grads[0]}, with_input_shape(call))};
}

Cost cost_pool(const OpCall& call, std::span<const ValueType> outputs) {
  return {static_cast<double>(outputs[0].shape.elements() * window_size(call.attrs)),
          bytes_moved(call, outputs)};
}

Cost cost_avg_pool_grad(const OpCall& call, std::span<const ValueType> outputs) {
  return {static_cast<double>(call.shape(0).elements() * window_size(call.attrs)),
          bytes_moved(call, outputs)};
}

std::vector<Placement> place_pool(const PlaceCall& call) {
  return place_images(call);
}

}  // namespace

Value max_pool(Value x, PoolOptions options) {
  return x.graph().add1(Op::MaxPool, {x}, pool_attrs(options));
}

Value avg_pool(Value x, PoolOptions options) {
  return x.graph().add1(Op::AvgPool, {x}, pool_attrs(options));
}

std::vector<ValueType> max_pool_types(const ValueType& image, const Attrs& attrs) {
  const Shape shape = pool_shape(image.shape, attrs);
  return {{image.dtype, shape}, {index_dtype(attrs), shape}};
}

std::vector<OpDef> pool_ops() {
  return {{.op = Op::MaxPool,
           .name = "max_pool",
           .precision = PrecisionRule::Follow,
           .infer = infer_max_pool,
           .gradient = gradient_max_pool,
           .cost = cost_pool,
           .place = place_pool},
          {.op = Op::MaxPoolGrad,
           .name = "max_pool_grad",
           .precision = PrecisionRule::Follow,
           .infer = infer_max_pool_grad,
           .cost = cost_per_element<1>,
           .place = place_pool},
          {.op = Op::AvgPool,
           .name = "avg_pool",
           .precision = PrecisionRule::Follow,
           .infer = infer_avg_pool,
           .gradient = gradient_avg_pool,
           .cost = cost_pool,
           .place = place_pool},
          {.op = Op::AvgPoolGrad,
           .name = "avg_pool_grad",
           .precision = PrecisionRule::Follow,
           .infer = infer_grad,
           .cost = cost_avg_pool_grad,
           .place = place_pool}};
}

}  // namespace lockstep
