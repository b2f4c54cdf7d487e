// Convolution over (N, H, W, C) images.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "lockstep/graph/graph.h"

namespace lockstep {

// Zeros around an image: top, bottom, left, right.
using Padding = std::array<std::int64_t, 4>;

// "valid": none. "same": as TensorFlow pads, the odd one at the bottom and right. UsageError else.
Padding resolve_padding(std::string_view kind, const Shape& image,
                        std::array<std::int64_t, 2> window, std::array<std::int64_t, 2> strides,
                        std::array<std::int64_t, 2> dilations = {1, 1});

struct ConvOptions {
  std::array<std::int64_t, 2> strides = {1, 1};
  std::array<std::int64_t, 2> dilations = {1, 1};
  Padding padding = {0, 0, 0, 0};
  std::int64_t groups = 1;
  std::string activation = "";  // fused, applied after the bias
  double alpha = 0.2;
};

// x (N, H, W, C), filter (kh, kw, C / groups, O), bias (O) → (N, H', W', O). Depthwise is
// groups = C. Attributes: strides, dilations, padding (Ints), groups; activation, alpha if any.
// A backend may offer the extra statistics (an attribute): two more outputs, the sums of each
// channel of the result and of its squares, (O) in f32. And pool (set_pooling): the results are
// those of max_pool on the result, which is never whole; the filter's gradient then takes the
// gradient of the pooled result, and the winners' places as a third input.
Value conv2d(Value x, Value filter, ConvOptions options = {});
Value conv2d(Value x, Value filter, Value bias, ConvOptions options = {});

// The gradients, as nodes: of the input (attribute input_shape), and of the filter (attribute
// filter_shape) with, where with_bias, the bias's as a second output, from the same sweep.
Value conv2d_grad_input(Value dy, Value filter, const Shape& input, const ConvOptions& options);
std::vector<Value> conv2d_grad_filter(Value x, Value dy, const Shape& filter, bool with_bias,
                                      const ConvOptions& options);

// Whether a node pools its result, or undoes that first. How it does comes from the attributes of a
// node of max_pool or its gradient, can be had as that has them, and the rest without them.
bool is_pooled(const Attrs& conv);
void set_pooling(Attrs& conv, const Attrs& pool);
Attrs pooling_of(const Attrs& conv);
Attrs without_pooling(Attrs conv);
// The shape of a convolution's result, before it is pooled.
Shape conv_shape_of(const Shape& x, const Shape& filter, const Attrs& conv);

}  // namespace lockstep
