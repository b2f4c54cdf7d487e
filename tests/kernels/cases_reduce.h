// Cases of the reductions.
#pragma once

#include "kernels/op_case.h"

namespace lockstep {

inline std::vector<OpCase> reduce_cases() {
  struct Form {
    std::string name;
    Shape shape;
    Ints axes;
    bool keepdims = false;
    bool timed = false;
  };
  const std::vector<Form> forms = {
      {"all", {3, 5, 2}, {}},
      {"scalar", {}, {}},
      {"leading", {7, 5}, {0}},
      {"leading_keepdims", {7, 5}, {0}, true},
      {"leading_two", {3, 4, 5}, {0, 1}},
      {"trailing", {7, 5}, {-1}},
      {"trailing_two", {3, 4, 5}, {1, 2}, true},
      {"middle", {3, 4, 5}, {1}},
      {"around", {3, 4, 5}, {0, 2}},
      {"alternating", {2, 3, 4, 5}, {1, 3}},
      {"alternating_from_the_front", {2, 3, 4, 5}, {0, 2}, true},
      {"axis_of_one", {3, 1, 5}, {1}},
      {"one_element", {1, 1}, {0}},
      {"empty_batch", {0, 4}, {1}},
      {"long_row", {1, 5003}, {1}},
      {"wide_columns", {9, 203}, {0}},
      {"all_timed", {1024, 1024}, {}, false, true},
      {"rows_timed", {1024, 1024}, {1}, false, true},
      {"columns_timed", {4096, 256}, {0}, false, true},
      {"images_timed", {64, 28, 28, 32}, {1, 2}, false, true},
      {"around_timed", {16, 128, 64}, {0, 2}, false, true},
      {"short_columns_timed", {2, 9, 32768}, {1}, false, true},
  };
  const std::vector<std::pair<std::string, Value (*)(Value, ReduceOptions)>> ops = {
      {"sum", reduce_sum}, {"mean", reduce_mean}, {"max", reduce_max}};
  std::vector<OpCase> cases;
  for (const auto& [name, op] : ops) {
    for (const Form& form : forms) {
      cases.push_back({.name = name + "_" + form.name,
                       .inputs = {f32(form.shape)},
                       .build =
                           [op = op, form](Graph&, CaseInputs in) {
                             return op(in[0], {.axes = form.axes, .keepdims = form.keepdims});
                           },
                       .timed = form.timed});
    }
  }
  cases.push_back({.name = "sum_of_nothing_inside",
                   .inputs = {f32({4, 0, 3, 2})},
                   .build =
                       [](Graph&, CaseInputs in) {
                         return reduce_sum(in[0], {.axes = {1, 3}});
                       },
                   .differentiable = false});
  for (int axis : {0, 1, -1}) {
    cases.push_back({.name = fmt::format("argmax_{}", axis < 0 ? "last" : std::to_string(axis)),
                     .inputs = {f32({4, 5, 6})},
                     .build = [axis](Graph&, CaseInputs in) { return argmax(in[0], axis); },
                     .differentiable = false});
  }
  cases.push_back({.name = "argmax_long_rows",
                   .inputs = {f32({3, 5003})},
                   .build = [](Graph&, CaseInputs in) { return argmax(in[0], -1); },
                   .differentiable = false});
  // The logarithm of a negative number is NaN, which is never the largest.
  struct WithNaN {
    const char* name;
    Shape shape;
    int axis;
  };
  for (const WithNaN& form : {WithNaN{"rows", {40, 7}, -1}, WithNaN{"columns", {7, 40}, 0},
                              WithNaN{"long_rows", {3, 5003}, -1}}) {
    cases.push_back(
        {.name = fmt::format("argmax_among_nan_in_{}", form.name),
         .inputs = {f32(form.shape)},
         .build = [axis = form.axis](Graph&, CaseInputs in) { return argmax(log(in[0]), axis); },
         .differentiable = false});
  }
  return cases;
}

}  // namespace lockstep
