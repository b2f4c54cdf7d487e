// Cases of ops on images whose layout has blocks of channels. Only a convolution produces such
// images, so each op follows one; each case also exists for a row-major image, where a kernel's
// vectors run along all channels.
#pragma once

#include "kernels/op_case.h"

namespace lockstep {

// The result of a 3×3 convolution of three channels; image and filter are inputs 0 and 1 of a case.
inline std::vector<CaseInput> blocked_inputs(const Shape& image) {
  return {f32(image.with(3, 3)), f32({3, 3, 3, image[3]})};
}
inline Value blocked_image(CaseInputs in) {
  return conv2d(in[0], in[1], {.padding = {1, 1, 1, 1}});
}

inline std::vector<OpCase> blocked_pool_cases() {
  struct Row {
    std::string name;
    std::int64_t height, width;
    PoolOptions options = {};
  };
  const std::vector<Row> rows{
      {"tiling", 6, 8},
      {"leaving_a_rest", 7, 5},
      {"overlapping", 7, 7, {.window = {3, 3}, .strides = {2, 2}}},
      {"padded", 6, 7, {.window = {3, 3}, .strides = {2, 2}, .padding = {1, 1, 1, 1}}},
      {"with_gaps", 9, 9, {.window = {2, 2}, .strides = {3, 4}}},
  };
  std::vector<OpCase> cases;
  for (const Row& row : rows) {
    for (const std::int64_t channels : {8, 16, 24, 32, 40}) {
      const Shape image{2, row.height, row.width, channels};
      const PoolOptions options = row.options;
      const std::string name = fmt::format("max_pool_{}_{}", row.name, channels);
      cases.push_back(
          {.name = name + "_row_major",
           .inputs = {f32(image)},
           .build = [options](Graph&, CaseInputs in) { return max_pool(in[0], options); }});
      cases.push_back({.name = name + "_blocked",
                       .inputs = blocked_inputs(image),
                       .build = [options](Graph&, CaseInputs in) {
                         return max_pool(blocked_image(in), options);
                       }});
      cases.push_back({.name = name + "_blocked_relu",
                       .inputs = blocked_inputs(image),
                       .build = [options](Graph&, CaseInputs in) {
                         return max_pool(relu(blocked_image(in)), options);
                       }});
      const std::string mean = fmt::format("avg_pool_{}_{}", row.name, channels);
      cases.push_back(
          {.name = mean + "_row_major",
           .inputs = {f32(image)},
           .build = [options](Graph&, CaseInputs in) { return avg_pool(in[0], options); }});
      cases.push_back({.name = mean + "_blocked",
                       .inputs = blocked_inputs(image),
                       .build = [options](Graph&, CaseInputs in) {
                         return avg_pool(blocked_image(in), options);
                       }});
    }
  }
  return cases;
}

inline std::vector<OpCase> blocked_norm_cases() {
  struct Row {
    std::string name;
    bool relu = false;
    bool residual = false;
    bool read_twice = false;  // makes the gradient of its result a sum
  };
  const std::vector<Row> rows{{"batch_norm"},
                              {"batch_norm_relu", true},
                              {"batch_norm_residual", false, true},
                              {"batch_norm_residual_relu", true, true},
                              {"batch_norm_residual_relu_read_twice", true, true, true}};
  std::vector<OpCase> cases;
  for (const Row& row : rows) {
    for (const std::int64_t channels : {8, 16, 24, 32, 40, 88}) {
      for (const bool blocked : {false, true}) {
        const Shape image{3, 5, 3, channels};
        OpCase op_case{
            .name = fmt::format("{}_{}_{}", row.name, channels, blocked ? "blocked" : "row_major")};
        op_case.inputs = blocked ? blocked_inputs(image) : std::vector<CaseInput>{f32(image)};
        const std::size_t used = op_case.inputs.size();
        op_case.inputs.push_back(f32_positive({channels}));
        op_case.inputs.push_back(f32({channels}));
        if (row.residual) op_case.inputs.push_back(f32(image));
        op_case.build = [=](Graph&, CaseInputs in) {
          const Value x = blocked ? blocked_image(in) : in[0];
          Value y = batch_norm(x, in[used], in[used + 1]).y;
          if (row.residual) y = add(y, in[used + 2]);
          if (row.relu) y = relu(y);
          std::vector<Value> results{y};
          if (row.read_twice) results.push_back(mul(y, in[used + 2]));
          return results;
        };
        cases.push_back(std::move(op_case));
      }
    }
  }
  return cases;
}

// Convolutions of one channel, whose filter gradient has a special kernel. It takes dy in blocks,
// as the gradient of a max pool after the convolution gives it; without a pool, dy is row-major.
inline std::vector<OpCase> thin_conv_cases() {
  struct Row {
    std::string name;
    std::int64_t images, window;
    ConvOptions options = {};
    bool bias = true;
  };
  const Padding around_3{1, 1, 1, 1};
  const Padding around_5{2, 2, 2, 2};
  const std::vector<Row> rows{
      {"same", 2, 3, {.padding = around_3}},
      {"same_no_bias", 2, 3, {.padding = around_3}, false},
      {"same_more_images_than_a_group", 6, 3, {.padding = around_3}},
      {"valid", 2, 3},
      {"strided", 3, 3, {.strides = {2, 2}, .padding = around_3}},
      {"strided_unevenly", 3, 3, {.strides = {1, 2}, .padding = {1, 0, 0, 2}}},
      {"dilated", 2, 3, {.dilations = {2, 2}, .padding = around_5}},
      {"five_by_five", 2, 5, {.padding = around_5}},
      {"five_by_five_strided", 2, 5, {.strides = {2, 2}, .padding = around_5}},
      {"seven_by_seven", 1, 7, {.padding = around_5}},
  };
  std::vector<OpCase> cases;
  for (const Row& row : rows) {
    for (const std::int64_t outputs : {8, 16, 24, 32}) {
      for (const bool pooled : {false, true}) {
        OpCase op_case{.name = fmt::format("{}_{}{}", row.name, outputs, pooled ? "_pooled" : "")};
        op_case.inputs = {f32({row.images, 9, 11, 1}), f32({row.window, row.window, 1, outputs})};
        if (row.bias) op_case.inputs.push_back(f32({outputs}));
        op_case.build = [options = row.options, pooled](Graph&, CaseInputs in) {
          const Value y =
              in.size() > 2 ? conv2d(in[0], in[1], in[2], options) : conv2d(in[0], in[1], options);
          return pooled ? max_pool(relu(y)) : y;
        };
        cases.push_back(std::move(op_case));
      }
    }
  }
  return cases;
}

}  // namespace lockstep
