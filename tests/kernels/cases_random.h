// Cases of random ops. Every library draws the same numbers.
#pragma once

#include "kernels/op_case.h"

namespace lockstep {

inline std::vector<OpCase> random_cases() {
  struct Row {
    std::string name;
    Shape shape;
    DropoutOptions options;
    bool timed = false;
  };
  std::vector<OpCase> cases;
  for (const Row& row : std::vector<Row>{{"half", {7, 33}, {.rate = 0.5, .seed = 3, .key = 8}},
                                         {"few", {3, 5, 4, 3}, {.rate = 0.1, .seed = 3}},
                                         {"most", {4, 200}, {.rate = 0.9, .seed = 1, .key = 1}},
                                         {"one_element_a_sample", {9}, {.rate = 0.3}},
                                         {"empty_batch", {0, 5}, {.rate = 0.3}},
                                         {"timed", {64, 4096}, {.rate = 0.5}, true}}) {
    cases.push_back({.name = "dropout_" + row.name,
                     .inputs = {f32(row.shape)},
                     .build = [options = row.options](
                                  Graph&, CaseInputs in) { return dropout(in[0], options); },
                     .timed = row.timed,
                     .tolerance = 1e-7});
  }
  return cases;
}

}  // namespace lockstep
