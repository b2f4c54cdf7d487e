// Cases of convolution and its gradients.
#pragma once

#include "kernels/op_case.h"

namespace lockstep {

inline std::vector<OpCase> conv_cases() {
  std::vector<OpCase> cases;
  struct Row {
    std::string name;
    Shape image;
    Shape filter;
    ConvOptions options = {};
    bool bias = false;
    bool timed = false;
  };
  const auto same = [](Shape image, Shape filter, ConvOptions options) {
    options.padding =
        resolve_padding("same", image, {filter[0], filter[1]}, options.strides, options.dilations);
    return options;
  };
  const auto same_row = [&](std::string name, Shape image, Shape filter, ConvOptions options = {}) {
    return Row{std::move(name), image, filter, same(image, filter, options)};
  };
  std::vector<Row> rows{
      {"valid", {2, 7, 6, 3}, {3, 3, 3, 5}},
      same_row("same", {2, 7, 6, 3}, {3, 3, 3, 5}),
      same_row("same_even_window", {1, 5, 5, 2}, {2, 4, 2, 3}),
      {"strided", {2, 9, 8, 3}, {3, 3, 3, 4}, {.strides = {2, 3}}},
      same_row("same_strided", {2, 7, 8, 3}, {3, 3, 3, 4}, {.strides = {2, 2}}),
      {"stride_leaves_a_rest", {1, 8, 8, 2}, {3, 3, 2, 2}, {.strides = {2, 2}}},
      {"stride_above_the_window", {1, 9, 9, 2}, {1, 1, 2, 3}, {.strides = {2, 2}}},
      {"dilated", {2, 9, 9, 2}, {3, 3, 2, 3}, {.dilations = {2, 3}}},
      same_row("same_dilated", {1, 7, 7, 2}, {3, 3, 2, 3}, {.dilations = {2, 2}}),
      {"padded_unevenly", {2, 5, 6, 3}, {3, 3, 3, 4}, {.padding = {1, 2, 0, 3}}},
      {"padded_unevenly_strided",
       {1, 6, 5, 2},
       {3, 2, 2, 4},
       {.strides = {2, 2}, .padding = {2, 0, 1, 1}}},
      {"groups", {2, 6, 6, 4}, {3, 3, 2, 6}, {.groups = 2}},
      {"depthwise", {2, 6, 6, 5}, {3, 3, 1, 5}, {.groups = 5}},
      {"depthwise_strided",
       {2, 7, 7, 5},
       {3, 3, 1, 5},
       {.strides = {2, 2}, .padding = {1, 1, 1, 1}, .groups = 5}},
      {"depthwise_wide", {1, 4, 4, 130}, {3, 3, 1, 130}, {.groups = 130}},
      {"depthwise_with_multiplier", {2, 6, 6, 3}, {3, 3, 1, 6}, {.groups = 3}},
      {"one_by_one", {2, 5, 5, 8}, {1, 1, 8, 16}},
      {"one_channel", {2, 8, 8, 1}, {5, 5, 1, 6}},
      {"one_channel_out", {2, 6, 6, 3}, {3, 3, 3, 1}},
      {"size_one", {1, 1, 1, 1}, {1, 1, 1, 1}},
      {"window_as_large_as_the_image", {3, 4, 5, 2}, {4, 5, 2, 7}},
      {"odd_channels", {1, 5, 5, 17}, {3, 3, 17, 33}},
      {"more_channels_than_a_tile", {1, 3, 3, 2}, {3, 3, 2, 150}},
      {"empty_batch", {0, 6, 6, 3}, {3, 3, 3, 4}},
      {"bias", {2, 6, 5, 3}, {3, 3, 3, 4}, {}, true},
      {"bias_relu", {2, 6, 5, 3}, {3, 3, 3, 4}, {.activation = "relu"}, true},
      {"bias_depthwise", {2, 5, 5, 4}, {3, 3, 1, 4}, {.groups = 4}, true},
      {"bias_empty_batch", {0, 6, 6, 3}, {3, 3, 3, 4}, {}, true},
      {"relu", {2, 6, 5, 3}, {3, 3, 3, 4}, {.activation = "relu"}},
  };
  Row lenet{"lenet_timed", {64, 28, 28, 1}, {5, 5, 1, 32}, {.padding = {2, 2, 2, 2}}, true, true};
  Row block = same_row("block_timed", {8, 28, 28, 32}, {3, 3, 32, 32});
  block.timed = true;
  // Three channels and strides of two: GPUs pad the channels, or fold pixels into more channels.
  for (const std::int64_t window : {3, 7}) {
    const std::int64_t side = window / 2;
    rows.push_back({fmt::format("stem_{}_timed", window),
                    {16, 65, 66, 3},
                    {window, window, 3, 64},
                    {.strides = {2, 2}, .padding = {side, side, side, side}},
                    false,
                    true});
  }
  rows.push_back(lenet);
  rows.push_back(block);
  for (const Row& row : rows) {
    OpCase op_case{.name = row.name,
                   .inputs = {f32(row.image), f32(row.filter)},
                   .build = {},
                   .timed = row.timed};
    if (row.bias) {
      op_case.inputs.push_back(f32({row.filter[3]}));
      op_case.build = [options = row.options](Graph&, CaseInputs in) {
        return conv2d(in[0], in[1], in[2], options);
      };
    } else {
      op_case.build = [options = row.options](Graph&, CaseInputs in) {
        return conv2d(in[0], in[1], options);
      };
    }
    cases.push_back(std::move(op_case));
  }
  // A kernel without this activation leaves the case to the next kernel. If the gradient needs the
  // activation's input, which a fused node does not keep, there is no gradient.
  for (const char* kind : {"relu6", "leaky_relu", "tanh", "sigmoid", "gelu", "gelu_tanh", "silu",
                           "softplus", "linear"}) {
    cases.push_back({.name = fmt::format("bias_{}", kind),
                     .inputs = {f32({2, 6, 5, 3}), f32({3, 3, 3, 8}), f32({8})},
                     .build =
                         [kind](Graph&, CaseInputs in) {
                           return conv2d(in[0], in[1], in[2], {.activation = kind});
                         },
                     .differentiable = activation_grad_uses_output(kind)});
  }
  // A separate activation node, which the pass may fuse into the convolution; odd channels are
  // padded to blocks, and the padding must stay zero.
  for (const char* kind : {"relu6", "leaky_relu", "gelu", "gelu_tanh", "silu", "softplus"}) {
    for (const std::int64_t channels : {5, 16}) {
      cases.push_back({.name = fmt::format("{}_behind_{}_channels", kind, channels),
                       .inputs = {f32({2, 6, 5, 3}), f32({3, 3, 3, channels}), f32({channels}),
                                  f32({3, 3, channels, 4})},
                       .build =
                           [kind](Graph&, CaseInputs in) {
                             return conv2d(activation(conv2d(in[0], in[1], in[2]), kind), in[3]);
                           },
                       .differentiable = false});
    }
    cases.push_back(
        {.name = fmt::format("block_{}_timed", kind),
         .inputs = {f32({8, 28, 28, 32}), f32({3, 3, 32, 32})},
         .build = [kind](Graph&, CaseInputs in) { return activation(conv2d(in[0], in[1]), kind); },
         .differentiable = false,
         .timed = true});
  }
  // Fused with max pooling, a few images at a time.
  struct Pooled {
    std::string name;
    Shape image, filter;
    PoolOptions options = {};
    bool timed = false;
  };
  const std::vector<Pooled> pooled{
      {"pooled", {6, 10, 12, 3}, {3, 3, 3, 16}},
      {"pooled_from_one_channel", {7, 9, 9, 1}, {3, 3, 1, 8}, {.window = {3, 3}}},
      {"pooled_odd_channels",
       {5, 8, 8, 2},
       {3, 3, 2, 17},
       {.window = {3, 3}, .padding = {1, 1, 1, 1}}},
      {"pooled_window_beyond_a_byte", {2, 20, 20, 1}, {1, 1, 1, 8}, {.window = {17, 16}}},
      {"pooled_timed", {64, 28, 28, 1}, {3, 3, 1, 32}, {}, true},
      {"pooled_block_timed", {64, 14, 14, 32}, {3, 3, 32, 64}, {}, true},
  };
  for (const Pooled& row : pooled) {
    cases.push_back({.name = row.name,
                     .inputs = {f32(row.image), f32(row.filter), f32({row.filter[3]})},
                     .build =
                         [options = row.options](Graph&, CaseInputs in) {
                           return max_pool(conv2d(in[0], in[1], in[2]), options);
                         },
                     .differentiable = false,
                     .timed = row.timed});
  }
  // The gradients are themselves differentiable.
  cases.push_back({.name = "gradient_of_the_input",
                   .inputs = {f32({2, 2, 3, 4}), f32({3, 3, 3, 4})},
                   .build = [](Graph&, CaseInputs in) {
                     return conv2d_grad_input(in[0], in[1], {2, 5, 6, 3},
                                              {.strides = {2, 2}, .padding = {0, 1, 1, 0}});
                   }});
  cases.push_back({.name = "gradient_of_the_filter",
                   .inputs = {f32({2, 5, 6, 3}), f32({2, 2, 3, 4})},
                   .build = [](Graph&, CaseInputs in) {
                     return conv2d_grad_filter(in[0], in[1], {3, 3, 3, 4}, true,
                                               {.strides = {2, 2}, .padding = {0, 1, 1, 0}});
                   }});
  return cases;
}

}  // namespace lockstep
