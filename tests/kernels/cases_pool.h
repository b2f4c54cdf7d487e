// Cases of pooling.
#pragma once

#include "kernels/op_case.h"

namespace lockstep {

inline std::vector<OpCase> pool_cases() {
  struct Row {
    std::string name;
    Shape image;
    PoolOptions options = {};
    bool timed = false;
  };
  const std::vector<Row> rows{
      {"halves", {2, 6, 8, 3}},
      {"odd_sizes_leave_a_rest", {2, 7, 5, 3}},
      {"overlapping", {2, 7, 7, 3}, {.window = {3, 3}, .strides = {2, 2}}},
      {"padded", {2, 6, 7, 3}, {.window = {3, 3}, .strides = {2, 2}, .padding = {1, 1, 1, 1}}},
      {"padded_unevenly",
       {1, 5, 6, 2},
       {.window = {3, 4}, .strides = {2, 3}, .padding = {0, 1, 2, 1}}},
      {"stride_one", {1, 5, 5, 4}, {.window = {2, 3}, .strides = {1, 1}}},
      {"gaps_between_windows", {1, 9, 9, 2}, {.window = {2, 2}, .strides = {3, 4}}},
      {"whole_image", {3, 4, 5, 6}, {.window = {4, 5}, .strides = {4, 5}}},
      {"window_beyond_a_byte", {1, 20, 20, 2}, {.window = {17, 16}, .strides = {2, 2}}},
      {"size_one", {1, 1, 1, 1}, {.window = {1, 1}, .strides = {1, 1}}},
      {"odd_channels", {1, 6, 6, 17}},
      {"empty_batch", {0, 6, 6, 3}},
      {"timed",
       {8, 56, 56, 64},
       {.window = {3, 3}, .strides = {2, 2}, .padding = {1, 1, 1, 1}},
       true},
      {"halves_timed", {64, 28, 28, 32}, {}, true},
  };
  std::vector<OpCase> cases;
  for (const Row& row : rows) {
    cases.push_back({.name = "max_" + row.name,
                     .inputs = {f32(row.image)},
                     .build = [options = row.options](
                                  Graph&, CaseInputs in) { return max_pool(in[0], options); },
                     .timed = row.timed});
    cases.push_back({.name = "avg_" + row.name,
                     .inputs = {f32(row.image)},
                     .build = [options = row.options](
                                  Graph&, CaseInputs in) { return avg_pool(in[0], options); },
                     .timed = row.timed});
  }
  // As in networks: between convolutions, whose layout pooling can take without a reorder.
  cases.push_back(
      {.name = "avg_between_convolutions_timed",
       .inputs = {f32({8, 56, 56, 16}), f32({1, 1, 16, 64}), f32({1, 1, 64, 16})},
       .build = [](Graph&, CaseInputs in) { return conv2d(avg_pool(conv2d(in[0], in[1])), in[2]); },
       .timed = true});
  return cases;
}

}  // namespace lockstep
