#include "lockstep/graph/ops/conv.h"

#include <algorithm>

#include "lockstep/graph/ops/placement_rules.h"
#include "lockstep/graph/ops/pool.h"
#include "lockstep/graph/ops/reduce.h"
#include "lockstep/graph/ops/rules.h"

namespace lockstep {
namespace {

Attrs conv_attrs(const ConvOptions& options) {
  Attrs attrs{
      {"strides", Ints(options.strides.begin(), options.strides.end())},
      {"dilations", Ints(options.dilations.begin(), options.dilations.end())},
      {"padding", Ints(options.padding.begin(), options.padding.end())},
      {"groups", options.groups},
  };
  set_activation(attrs, options.activation, options.alpha);
  return attrs;
}

// The options in a node's attributes, without the activation.
ConvOptions conv_options(const Attrs& attrs) {
  ConvOptions options;
  std::copy_n(attrs.ints("strides").begin(), 2, options.strides.begin());
  std::copy_n(attrs.ints("dilations").begin(), 2, options.dilations.begin());
  std::copy_n(attrs.ints("padding").begin(), 4, options.padding.begin());
  options.groups = attrs.integer("groups");
  return options;
}

Ints ints(const Shape& shape) {
  return {shape.dims().begin(), shape.dims().end()};
}

// The result's shape; UsageError if image and filter do not match.
Shape conv_shape(const Shape& x, const Shape& filter, const ConvOptions& options) {
  require(x.rank() == 4, "the image must be (N, H, W, C), not {}", x);
  require(filter.rank() == 4, "the filter must be (kh, kw, C / groups, O), not {}", filter);
  const std::int64_t groups = options.groups;
  require(groups >= 1, "there must be at least one group, not {}", groups);
  require(x[3] % groups == 0 && filter[3] % groups == 0,
          "{} groups do not divide the channels: image {}, filter {}", groups, x, filter);
  require(filter[2] == x[3] / groups,
          "the filter {} takes {} channels, but the image {} has {} in each of {} group(s)", filter,
          filter[2], x, x[3] / groups, groups);
  std::array<std::int64_t, 2> extents{};
  for (int i = 0; i < 2; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::int64_t stride = options.strides[at];
    const std::int64_t dilation = options.dilations[at];
    const std::int64_t before = options.padding[2 * at];
    const std::int64_t after = options.padding[2 * at + 1];
    require(stride >= 1 && dilation >= 1, "stride {} and dilation {} must be at least 1", stride,
            dilation);
    require(before >= 0 && after >= 0, "padding must not be negative: {} and {}", before, after);
    require(filter[i] >= 1, "the filter {} has an empty window", filter);
    const std::int64_t window = (filter[i] - 1) * dilation + 1;
    const std::int64_t padded = x[i + 1] + before + after;
    require(window <= padded,
            "the {} of the window, {}, is more than that of the padded image, {}: image {}, "
            "filter {}",
            i == 0 ? "height" : "width", window, padded, x, filter);
    extents[at] = (padded - window) / stride + 1;
  }
  return {x[0], extents[0], extents[1], filter[3]};
}

void require_same_dtype(const OpCall& call) {
  require_floating(call, 0, "the image");
  require(call.dtype(0) == call.dtype(1), "the inputs have different types: {} and {}",
          call.inputs[0].str(), call.inputs[1].str());
}

std::vector<ValueType> infer_conv(const OpCall& call) {
  require_same_dtype(call);
  const Shape shape = conv_shape(call.shape(0), call.shape(1), conv_options(call.attrs));
  if (call.inputs.size() > 2) require_type(call, 2, {call.dtype(0), {shape[3]}}, "the bias");
  if (is_pooled(call.attrs)) return max_pool_types({call.dtype(0), shape}, pooling_of(call.attrs));
  const ValueType sums{DType::F32, {shape[3]}};
  if (call.attrs.has("statistics")) return {{call.dtype(0), shape}, sums, sums};
  return {{call.dtype(0), shape}};
}

void require_result(const Shape& dy, const Shape& x, const Shape& filter, const Attrs& attrs) {
  const Shape expected = conv_shape(x, filter, conv_options(attrs));
  require(dy == expected, "the gradient is {}, but image {} and filter {} give {}", dy, x, filter,
          expected);
}

std::vector<ValueType> infer_grad_input(const OpCall& call) {
  require_same_dtype(call);
  const Shape x{call.attrs.ints("input_shape")};
  require_result(call.shape(0), x, call.shape(1), call.attrs);
  return {{call.dtype(0), x}};
}

std::vector<ValueType> infer_grad_filter(const OpCall& call) {
  require_same_dtype(call);
  const Shape filter{call.attrs.ints("filter_shape")};
  if (is_pooled(call.attrs)) {
    const Shape y = conv_shape(call.shape(0), filter, conv_options(call.attrs));
    const auto pooled = max_pool_types({call.dtype(1), y}, pooling_of(call.attrs));
    require_type(call, 1, pooled[0], "the gradient");
    require_type(call, 2, pooled[1], "the argmax indices");
  } else {
    require_result(call.shape(1), call.shape(0), filter, call.attrs);
  }
  std::vector<ValueType> types{{call.dtype(0), filter}};
  if (call.attrs.flag("with_bias")) types.push_back({call.dtype(0), {filter[3]}});
  return types;
}

std::vector<Value> gradient_conv(const GradCall& call) {
  const Value x = call.inputs[0];
  const Value filter = call.inputs[1];
  const Value dy = gradient_before_activation(call);
  const ConvOptions options = conv_options(call.attrs);
  std::vector<Value> grads(call.inputs.size());
  const bool with_bias = grads.size() > 2 && call.needed[2];
  if (call.needed[1]) {
    const auto parts = conv2d_grad_filter(x, dy, filter.shape(), with_bias, options);
    std::copy(parts.begin(), parts.end(), grads.begin() + 1);
  } else if (with_bias) {
    grads[2] = reduce_sum(dy, {.axes = leading_axes(dy.shape())});
  }
  if (call.needed[0]) grads[0] = conv2d_grad_input(dy, filter, x.shape(), options);
  return grads;
}

// Both gradients are linear in each of their inputs, so their gradients are convolutions again.
std::vector<Value> gradient_grad_input(const GradCall& call) {
  const Value dy = call.inputs[0];
  const Value filter = call.inputs[1];
  const Value grad = call.grads[0];
  const ConvOptions options = conv_options(call.attrs);
  std::vector<Value> grads(2);
  if (call.needed[0]) grads[0] = conv2d(grad, filter, options);
  if (call.needed[1]) grads[1] = conv2d_grad_filter(grad, dy, filter.shape(), false, options)[0];
  return grads;
}

std::vector<Value> gradient_grad_filter(const GradCall& call) {
  const Value x = call.inputs[0];
  const Value dy = call.inputs[1];
  const Value of_filter = call.grads[0];
  const Value of_bias = call.grads.size() > 1 ? call.grads[1] : Value();
  const ConvOptions options = conv_options(call.attrs);
  std::vector<Value> grads(2);
  if (call.needed[0] && of_filter.defined()) {
    grads[0] = conv2d_grad_input(dy, of_filter, x.shape(), options);
  }
  if (call.needed[1]) {
    if (of_filter.defined() && of_bias.defined()) {
      grads[1] = conv2d(x, of_filter, of_bias, options);
    } else if (of_filter.defined()) {
      grads[1] = conv2d(x, of_filter, options);
    } else {
      grads[1] = mul(dy, 0.0) + of_bias;
    }
  }
  return grads;
}

// 2 · N · H' · W' · O · kh · kw · C / groups operations, for the convolution and both gradients.
Cost conv_cost(const Shape& y, const Shape& filter, double bytes) {
  const std::int64_t window = filter[0] * filter[1] * filter[2];
  return {2.0 * static_cast<double>(y.elements()) * static_cast<double>(window), bytes};
}

Cost cost_conv(const OpCall& call, std::span<const ValueType> outputs) {
  return conv_cost(conv_shape_of(call.shape(0), call.shape(1), call.attrs), call.shape(1),
                   bytes_moved(call, outputs));
}

Cost cost_grad_input(const OpCall& call, std::span<const ValueType> outputs) {
  return conv_cost(call.shape(0), call.shape(1), bytes_moved(call, outputs));
}

Cost cost_grad_filter(const OpCall& call, std::span<const ValueType> outputs) {
  return conv_cost(conv_shape_of(call.shape(0), outputs[0].shape, call.attrs), outputs[0].shape,
                   bytes_moved(call, outputs));
}

std::vector<Placement> place_conv(const PlaceCall& call) {
  return place_images(call, {.parameters = {1, 2}});
}

std::vector<Placement> place_grad_input(const PlaceCall& call) {
  return place_images(call, {.parameters = {1}});
}

// Contracts over the samples.
std::vector<Placement> place_grad_filter(const PlaceCall& call) {
  return place_images(call, {.sums = {0, 1}});
}

}  // namespace

Padding resolve_padding(std::string_view kind, const Shape& image,
                        std::array<std::int64_t, 2> window, std::array<std::int64_t, 2> strides,
                        std::array<std::int64_t, 2> dilations) {
  require(image.rank() == 4, "[padding] the image must be (N, H, W, C), not {}", image);
  if (kind == "valid") return {0, 0, 0, 0};
  require(kind == "same", "[padding] there is no padding called {}; use \"valid\" or \"same\"",
          kind);
  Padding padding{};
  for (std::size_t i = 0; i < 2; ++i) {
    require(strides[i] >= 1 && dilations[i] >= 1,
            "[padding] stride {} and dilation {} must be at least 1", strides[i], dilations[i]);
    const std::int64_t extent = image[static_cast<int>(i) + 1];
    const std::int64_t results = (extent + strides[i] - 1) / strides[i];
    const std::int64_t reach = (results - 1) * strides[i] + (window[i] - 1) * dilations[i] + 1;
    const std::int64_t total = std::max<std::int64_t>(reach - extent, 0);
    padding[2 * i] = total / 2;
    padding[2 * i + 1] = total - total / 2;
  }
  return padding;
}

Value conv2d(Value x, Value filter, ConvOptions options) {
  return x.graph().add1(Op::Conv2D, {x, filter}, conv_attrs(options));
}

Value conv2d(Value x, Value filter, Value bias, ConvOptions options) {
  return x.graph().add1(Op::Conv2D, {x, filter, bias}, conv_attrs(options));
}

Value conv2d_grad_input(Value dy, Value filter, const Shape& input, const ConvOptions& options) {
  Attrs attrs = conv_attrs(options);
  attrs.set("input_shape", ints(input));
  return dy.graph().add1(Op::Conv2DGradInput, {dy, filter}, std::move(attrs));
}

std::vector<Value> conv2d_grad_filter(Value x, Value dy, const Shape& filter, bool with_bias,
                                      const ConvOptions& options) {
  Attrs attrs = conv_attrs(options);
  attrs.set("filter_shape", ints(filter));
  attrs.set("with_bias", with_bias);
  const std::array<Value, 2> inputs{x, dy};
  return x.graph().add(Op::Conv2DGradFilter, inputs, std::move(attrs));
}

bool is_pooled(const Attrs& conv) {
  return conv.has("pool_window");
}

void set_pooling(Attrs& conv, const Attrs& pool) {
  conv.set("pool_window", pool.ints("window"));
  conv.set("pool_strides", pool.ints("strides"));
  conv.set("pool_padding", pool.ints("padding"));
}

Attrs pooling_of(const Attrs& conv) {
  return {{"window", conv.ints("pool_window")},
          {"strides", conv.ints("pool_strides")},
          {"padding", conv.ints("pool_padding")}};
}

Attrs without_pooling(Attrs conv) {
  for (const char* name : {"pool_window", "pool_strides", "pool_padding"}) conv.remove(name);
  return conv;
}

Shape conv_shape_of(const Shape& x, const Shape& filter, const Attrs& conv) {
  return conv_shape(x, filter, conv_options(conv));
}

std::vector<OpDef> conv_ops() {
  return {{.op = Op::Conv2D,
           .name = "conv2d",
           .precision = PrecisionRule::Half,
           .infer = infer_conv,
           .gradient = gradient_conv,
           .cost = cost_conv,
           .place = place_conv},
          {.op = Op::Conv2DGradInput,
           .name = "conv2d_grad_input",
           .precision = PrecisionRule::Half,
           .infer = infer_grad_input,
           .gradient = gradient_grad_input,
           .cost = cost_grad_input,
           .place = place_grad_input},
          {.op = Op::Conv2DGradFilter,
           .name = "conv2d_grad_filter",
           .precision = PrecisionRule::Half,
           .infer = infer_grad_filter,
           .gradient = gradient_grad_filter,
           .cost = cost_grad_filter,
           .place = place_grad_filter}};
}

}  // namespace lockstep
