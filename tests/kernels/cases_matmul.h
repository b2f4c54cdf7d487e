// Cases of matrix products.
#pragma once

#include "kernels/op_case.h"

namespace lockstep {

inline std::vector<OpCase> matmul_cases() {
  std::vector<OpCase> cases;
  const auto add_case = [&](std::string name, Shape a, Shape b, MatMulOptions options = {},
                            bool timed = false) {
    cases.push_back(
        {.name = std::move(name),
         .inputs = {f32(std::move(a)), f32(std::move(b))},
         .build = [options](Graph&, CaseInputs in) { return matmul(in[0], in[1], options); },
         .timed = timed});
  };
  const auto add_with_bias = [&](std::string name, Shape a, Shape b, std::int64_t n,
                                 MatMulOptions options = {}, bool timed = false) {
    cases.push_back(
        {.name = std::move(name),
         .inputs = {f32(std::move(a)), f32(std::move(b)), f32({n})},
         .build = [options](Graph&, CaseInputs in) { return matmul(in[0], in[1], in[2], options); },
         .timed = timed});
  };
  add_case("plain", {5, 7}, {7, 3});
  add_case("size_one", {1, 1}, {1, 1});
  add_case("one_column", {9, 4}, {4, 1});
  add_case("longer_than_a_tile", {3, 300}, {300, 150});
  add_case("empty_batch", {0, 6}, {6, 4});
  add_case("empty_inner", {3, 0}, {0, 4});
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      const MatMulOptions options{.transpose_a = a, .transpose_b = b};
      const std::string suffix =
          fmt::format("_{}{}", a ? "transposed" : "plain", b ? "_transposed" : "_plain");
      const Shape left = a ? Shape{6, 5} : Shape{5, 6};
      const Shape right = b ? Shape{4, 6} : Shape{6, 4};
      const auto batched = [](const Shape& shape) { return Shape{2, 3, shape[0], shape[1]}; };
      add_case("matrix" + suffix, left, right, options);
      add_case("batched" + suffix, batched(left), batched(right), options);
      add_case("batched_by_one_matrix" + suffix, batched(left), right, options);
    }
  }
  add_with_bias("bias", {5, 7}, {7, 3}, 3);
  add_with_bias("bias_batched", {2, 5, 7}, {2, 7, 3}, 3);
  add_with_bias("bias_transposed", {5, 7}, {3, 7}, 3, {.transpose_b = true});
  add_with_bias("bias_empty_batch", {0, 7}, {7, 3}, 3);
  for (const char* kind : {"relu", "relu6", "leaky_relu", "tanh", "sigmoid"}) {
    add_with_bias(fmt::format("bias_{}", kind), {5, 7}, {7, 3}, 3, {.activation = kind});
    // Not saturated: tanh's gradient, 1 - y², loses most of its precision in 16 bits near y = 1.
    cases.back().inputs[1] = f32_uniform({7, 3}, -0.5, 0.5);
  }
  // A kernel without one of these leaves the case to the next kernel. Their gradients need the
  // activation's input, which a fused node does not keep.
  for (const char* kind : {"gelu", "gelu_tanh", "silu", "softplus", "linear"}) {
    add_with_bias(fmt::format("bias_{}", kind), {5, 7}, {7, 3}, 3, {.activation = kind});
    cases.back().differentiable = false;
    add_case(kind, {5, 7}, {7, 3}, {.activation = kind});
    cases.back().differentiable = false;
  }
  add_case("relu", {5, 7}, {7, 3}, {.activation = "relu"});
  // A separate activation node after the product, which the pass may fuse. In training the gradient
  // reads the value in between, so they stay separate.
  for (const char* kind : {"gelu", "silu", "softplus", "tanh"}) {
    for (const bool training : {false, true}) {
      cases.push_back(
          {.name = fmt::format("dense_{}_{}_timed", kind, training ? "training" : "inference"),
           .inputs = {f32({128, 256}), f32({256, 512}), f32({512})},
           .build = [kind](Graph&,
                           CaseInputs in) { return activation(matmul(in[0], in[1], in[2]), kind); },
           .differentiable = training,
           .timed = true});
    }
  }
  // The gradients of a layer's weights and of its bias in one node.
  const auto add_with_sums = [&](std::string name, Shape a, Shape b, bool timed = false) {
    cases.push_back(
        {.name = std::move(name),
         .inputs = {f32(std::move(a)), f32(std::move(b))},
         .build =
             [](Graph& graph, CaseInputs in) {
               return graph.add(
                   Op::MatMul, in,
                   {{"transpose_a", true}, {"transpose_b", false}, {"column_sums", true}});
             },
         .differentiable = false,
         .timed = timed});
  };
  add_with_sums("column_sums", {32, 128}, {32, 10});
  add_with_sums("column_sums_odd", {5, 7}, {5, 3});
  add_with_sums("column_sums_one_row", {1, 6}, {1, 9});
  add_with_sums("column_sums_of_nothing", {0, 6}, {0, 4});
  add_with_sums("column_sums_for_no_results", {5, 0}, {5, 4});
  add_with_sums("column_sums_long", {1000, 24}, {1000, 40});
  add_with_sums("column_sums_timed", {128, 784}, {128, 512}, true);
  // A product that is added to a matrix, or that takes its place.
  const auto add_accumulating = [&](std::string name, Shape a, Shape b, Shape c, double added = 1,
                                    bool timed = false) {
    cases.push_back(
        {.name = std::move(name),
         .inputs = {f32(std::move(a)), f32(std::move(b)), f32(std::move(c))},
         .build =
             [added](Graph& graph, CaseInputs in) {
               std::vector<Value> inputs(in.begin(), in.end());
               if (added != 1) inputs.push_back(graph.scalar(added));
               return graph.add(
                   Op::MatMul, inputs,
                   {{"transpose_a", true}, {"transpose_b", false}, {kAccumulates, true}});
             },
         .differentiable = false,
         .timed = timed});
  };
  add_accumulating("accumulates", {32, 128}, {32, 10}, {128, 10});
  add_accumulating("accumulates_odd", {5, 7}, {5, 3}, {7, 3});
  add_accumulating("accumulates_if_told", {5, 7}, {5, 3}, {7, 3}, 2);
  add_accumulating("accumulates_not_the_first", {5, 7}, {5, 3}, {7, 3}, 0);
  add_accumulating("accumulates_nothing", {0, 6}, {0, 4}, {6, 4});
  add_accumulating("accumulates_nothing_first", {0, 6}, {0, 4}, {6, 4}, 0);
  add_accumulating("accumulates_no_results", {5, 0}, {5, 4}, {0, 4});
  add_accumulating("accumulates_timed", {32, 784}, {32, 512}, {784, 512}, 1, true);
  add_case("square_timed", {256, 256}, {256, 256}, {}, true);
  add_with_bias("dense_timed", {128, 784}, {784, 512}, 512, {.activation = "relu"}, true);
  add_case("attention_timed", {8, 8, 64, 64}, {8, 8, 64, 64}, {.transpose_b = true}, true);
  return cases;
}

}  // namespace lockstep
