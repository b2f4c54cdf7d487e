// Cases of the elementwise ops.
#pragma once

#include <string_view>

#include "kernels/op_case.h"

namespace lockstep {

// A binary op over the ways in which two shapes broadcast.
inline void add_binary_cases(std::vector<OpCase>& cases, const std::string& name,
                             Value (*op)(Value, Value), CaseInput (*input)(Shape)) {
  struct Pair {
    std::string name;
    Shape a;
    Shape b;
  };
  const std::vector<Pair> pairs = {
      {"same", {3, 5}, {3, 5}},  {"scalars", {}, {}},
      {"scalar_right", {7}, {}}, {"scalar_left", {}, {2, 3}},
      {"bias", {4, 3, 5}, {5}},  {"column", {4, 5}, {4, 1}},
      {"outer", {4, 1}, {1, 5}}, {"middle", {2, 1, 3, 1}, {4, 1, 5}},
      {"ones", {1, 1, 1}, {1}},  {"empty_batch", {0, 4}, {4}},
  };
  for (const Pair& pair : pairs) {
    cases.push_back({.name = name + "_" + pair.name,
                     .inputs = {input(pair.a), input(pair.b)},
                     .build = [op](Graph&, CaseInputs in) { return op(in[0], in[1]); }});
  }
}

inline void add_unary_cases(std::vector<OpCase>& cases, const std::string& name,
                            std::function<Value(Value)> op, CaseInput (*input)(Shape)) {
  for (const auto& [size, shape] : std::vector<std::pair<std::string, Shape>>{
           {"odd", {3, 7}}, {"scalar", {}}, {"empty", {0, 3}}}) {
    cases.push_back({.name = name + "_" + size,
                     .inputs = {input(shape)},
                     .build = [op](Graph&, CaseInputs in) { return op(in[0]); }});
  }
}

inline std::vector<OpCase> elementwise_cases() {
  std::vector<OpCase> cases;
  add_binary_cases(cases, "add", add, f32);
  add_binary_cases(cases, "sub", sub, f32);
  add_binary_cases(cases, "mul", mul, f32);
  add_binary_cases(cases, "div", div, f32_positive);
  add_binary_cases(cases, "pow", pow, f32_positive);
  add_binary_cases(cases, "maximum", maximum, f32);
  add_binary_cases(cases, "minimum", minimum, f32);
  add_unary_cases(cases, "neg", neg, f32);
  add_unary_cases(cases, "abs", abs, f32);
  add_unary_cases(cases, "sign", sign, f32);
  add_unary_cases(cases, "exp", exp, f32);
  add_unary_cases(cases, "log", log, f32_positive);
  add_unary_cases(cases, "sqrt", sqrt, f32_positive);
  add_unary_cases(cases, "rsqrt", rsqrt, f32_positive);
  add_unary_cases(cases, "square", square, f32);
  for (const char* kind : {"linear", "relu", "relu6", "leaky_relu", "gelu", "gelu_tanh", "silu",
                           "tanh", "sigmoid", "softplus"}) {
    // The gradient of tanh is 1 - y², which loses most of its precision in 16 bits if y is near 1.
    const double scale = std::string_view(kind) == "tanh" ? 1.0 : 4.0;
    add_unary_cases(
        cases, kind, [kind, scale](Value x) { return activation(x * scale, kind, 0.3); }, f32);
    cases.push_back({.name = fmt::format("{}_timed", kind),
                     .inputs = {f32({64, 32, 32, 16})},
                     .build = [kind](Graph&, CaseInputs in) { return activation(in[0], kind); },
                     .timed = true});
  }

  for (const auto& [name, op] : std::vector<std::pair<std::string, Value (*)(Value, Value)>>{
           {"equal", equal},
           {"not_equal", not_equal},
           {"less", less},
           {"less_equal", less_equal},
           {"greater", greater},
           {"greater_equal", greater_equal}}) {
    cases.push_back({.name = name,
                     .inputs = {integers({5, 7}, 3, DType::I32), integers({7}, 3, DType::I32)},
                     .build = [op = op](Graph&, CaseInputs in) { return op(in[0], in[1]); }});
  }
  cases.push_back({.name = "select",
                   .inputs = {bools({3, 5}), f32({3, 5}), f32({3, 5})},
                   .build = [](Graph&, CaseInputs in) { return select(in[0], in[1], in[2]); }});
  cases.push_back({.name = "select_broadcast",
                   .inputs = {bools({4, 1}), f32({3, 1, 5}), f32({})},
                   .build = [](Graph&, CaseInputs in) { return select(in[0], in[1], in[2]); }});
  cases.push_back({.name = "select_by_comparison",
                   .inputs = {f32({6, 5})},
                   .build = [](Graph& graph, CaseInputs in) {
                     const Value zero = graph.scalar(0, in[0].dtype());
                     return select(greater(in[0], zero), square(in[0]), in[0]);
                   }});
  cases.push_back(
      {.name = "logic", .inputs = {bools({3, 4}), bools({4})}, .build = [](Graph&, CaseInputs in) {
         return std::vector<Value>{logical_and(in[0], in[1]), logical_or(in[0], in[1]),
                                   logical_not(in[0])};
       }});
  // The target type is that of the second input, which is f64 for finite differences.
  cases.push_back(
      {.name = "cast_of_indices",
       .inputs = {integers({5}, 9), f32({5})},
       .build = [](Graph&, CaseInputs in) { return cast(in[0], in[1].dtype()) * in[1]; }});
  cases.push_back({.name = "used_twice",
                   .inputs = {f32({4, 3})},
                   .build = [](Graph&, CaseInputs in) { return in[0] * in[0] + exp(in[0]); }});
  cases.push_back({.name = "add_bias_timed",
                   .inputs = {f32({64, 28, 28, 32}), f32({32})},
                   .build = [](Graph&, CaseInputs in) { return in[0] + in[1]; },
                   .timed = true});
  cases.push_back({.name = "add_timed",
                   .inputs = {f32({1024, 1024}), f32({1024, 1024})},
                   .build = [](Graph&, CaseInputs in) { return in[0] + in[1]; },
                   .timed = true});
  return cases;
}

}  // namespace lockstep
