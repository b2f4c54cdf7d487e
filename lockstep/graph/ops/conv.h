// Convolution over (N, H, W, C) images.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "lockstep/graph/graph.h"

namespace lockstep {

// Zeros around an image: top, bottom, left, right.
using Padding = std::array<std::int64_t, 4>;

// "valid": none. "same": as in TensorFlow, an odd row or column goes to the bottom or right.
// UsageError for anything else.
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

// x (N, H, W, C), filter (kh, kw, C / groups, O), bias (O) → (N, H', W', O). Depthwise is groups =
// C. Attributes: strides, dilations, padding (Ints), groups; activation, alpha if any. A backend
// may offer two extras. statistics (an attribute): two more outputs, the sums of each channel of
// the result and of its squares, (O) in f32. pool (set_pooling): the outputs are those of max_pool
// on the result, which never exists as a whole; the filter's gradient then takes the gradient of
// the pooled result, and the argmax indices as a third input.
Value conv2d(Value x, Value filter, ConvOptions options = {});
Value conv2d(Value x, Value filter, Value bias, ConvOptions options = {});

// The gradients as nodes: of the input (attribute input_shape), and of the filter (attribute
// filter_shape). With with_bias, the second output is the gradient of the bias, computed in the
// same pass.
Value conv2d_grad_input(Value dy, Value filter, const Shape& input, const ConvOptions& options);
std::vector<Value> conv2d_grad_filter(Value x, Value dy, const Shape& filter, bool with_bias,
                                      const ConvOptions& options);

// Whether a convolution pools its result, or its gradient first undoes the pooling. set_pooling
// takes the options from the attributes of a max_pool node or its gradient, pooling_of returns them
// in that form, and without_pooling removes them.
bool is_pooled(const Attrs& conv);
void set_pooling(Attrs& conv, const Attrs& pool);
Attrs pooling_of(const Attrs& conv);
Attrs without_pooling(Attrs conv);
// The shape of a convolution's result, before it is pooled.
Shape conv_shape_of(const Shape& x, const Shape& filter, const Attrs& conv);

}  // namespace lockstep
