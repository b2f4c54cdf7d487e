// Cases of normalisation.
#pragma once

#include "kernels/op_case.h"

namespace lockstep {

// Batch norm as the fusion pass leaves it: with relu, and with a residual added before if given.
inline Value fused_batch_norm(std::vector<Value> inputs) {
  return inputs[0].graph().add(Op::BatchNorm, inputs,
                               {{"epsilon", 1e-3}, {"activation", "relu"}})[0];
}

inline std::vector<OpCase> norm_cases() {
  std::vector<OpCase> cases;
  struct Row {
    std::string name;
    Shape shape;
    bool timed = false;
  };
  for (const Row& row : std::vector<Row>{{"images", {3, 4, 5, 6}},
                                         {"rows", {9, 5}},
                                         {"odd_channels", {2, 3, 3, 17}},
                                         {"many_channels", {5, 70}},
                                         {"one_channel", {2, 4, 4, 1}},
                                         {"empty_batch", {0, 4, 4, 3}},
                                         {"timed", {16, 28, 28, 64}, true}}) {
    const std::int64_t channels = row.shape[-1];
    const std::vector<CaseInput> inputs{f32(row.shape), f32_positive({channels}), f32({channels})};
    cases.push_back(
        {.name = "batch_norm_" + row.name,
         .inputs = inputs,
         .build = [](Graph&, CaseInputs in) { return batch_norm(in[0], in[1], in[2]).y; },
         .timed = row.timed});
    cases.push_back({.name = "batch_norm_relu_" + row.name,
                     .inputs = inputs,
                     .build =
                         [](Graph&, CaseInputs in) {
                           return fused_batch_norm({in[0], in[1], in[2]});
                         },
                     .timed = row.timed});
    std::vector<CaseInput> with_residual = inputs;
    with_residual.push_back(f32(row.shape));
    cases.push_back({.name = "batch_norm_residual_relu_" + row.name,
                     .inputs = with_residual,
                     .build =
                         [](Graph&, CaseInputs in) {
                           return fused_batch_norm({in[0], in[1], in[2], in[3]});
                         },
                     .timed = row.timed});
    // dy, x and the residual are not inputs of the graph, so gradients may overwrite them.
    cases.push_back({.name = "batch_norm_residual_relu_over_its_inputs_" + row.name,
                     .inputs = with_residual,
                     .build =
                         [](Graph&, CaseInputs in) {
                           return neg(fused_batch_norm({neg(in[0]), in[1], in[2], neg(in[3])}));
                         },
                     .differentiable = !row.timed});
    // The statistics have no gradient, but their values must agree, too.
    cases.push_back({.name = "batch_norm_statistics_" + row.name,
                     .inputs = inputs,
                     .build =
                         [](Graph&, CaseInputs in) {
                           const BatchNormResult result = batch_norm(in[0], in[1], in[2]);
                           return std::vector<Value>{result.mean, result.variance};
                         },
                     .differentiable = false});
    std::vector<CaseInput> given = inputs;
    given.push_back(f32({channels}));
    given.push_back(f32_positive({channels}));
    cases.push_back({.name = "batch_norm_inference_" + row.name,
                     .inputs = given,
                     .build =
                         [](Graph&, CaseInputs in) {
                           return batch_norm_inference(in[0], in[1], in[2], in[3], in[4]);
                         },
                     .timed = row.timed});
    // As separate nodes, which the fusion pass fuses.
    for (const bool residual : {false, true}) {
      std::vector<CaseInput> all = given;
      if (residual) all.push_back(f32(row.shape));
      cases.push_back({.name = fmt::format("batch_norm_inference{}_relu_{}",
                                           residual ? "_residual" : "", row.name),
                       .inputs = std::move(all),
                       .build =
                           [residual](Graph&, CaseInputs in) {
                             const Value y =
                                 batch_norm_inference(in[0], in[1], in[2], in[3], in[4]);
                             return relu(residual ? add(y, in[5]) : y);
                           },
                       .differentiable = !row.timed,
                       .timed = row.timed});
    }
  }
  for (const Row& row : std::vector<Row>{{"rows", {5, 7}},
                                         {"tokens", {2, 3, 33}},
                                         {"one_row", {9}},
                                         {"three_channels", {4, 3}},
                                         {"more_rows_than_a_piece", {70, 5}},
                                         {"wide", {3, 300}},
                                         {"empty_batch", {0, 6}},
                                         {"timed", {64, 128, 256}, true}}) {
    const std::int64_t channels = row.shape[-1];
    cases.push_back({.name = "layer_norm_" + row.name,
                     .inputs = {f32(row.shape), f32_positive({channels}), f32({channels})},
                     .build = [](Graph&, CaseInputs in) { return layer_norm(in[0], in[1], in[2]); },
                     .timed = row.timed,
                     // Over many rows, the gradients' sums nearly cancel.
                     .tolerance = row.timed ? 1e-4 : 1e-5});
  }
  return cases;
}

}  // namespace lockstep
