// Cases of softmax and of the losses from logits.
#pragma once

#include "kernels/op_case.h"

namespace lockstep {

inline std::vector<OpCase> softmax_cases() {
  std::vector<OpCase> cases;
  struct Row {
    std::string name;
    Shape logits;
    DType labels = DType::I64;
    bool timed = false;
  };
  for (const Row& row : std::vector<Row>{{"plain", {6, 10}, DType::U8},
                                         {"tokens", {2, 3, 7}, DType::I32},
                                         {"one_class", {4, 1}, DType::I64},
                                         {"one_row", {11}, DType::I64},
                                         {"many_classes", {3, 1003}, DType::I64},
                                         {"empty_batch", {0, 5}, DType::U8},
                                         {"timed", {256, 1000}, DType::I64, true},
                                         {"few_classes_timed", {4096, 10}, DType::I64, true}}) {
    const std::int64_t classes = row.logits[-1];
    std::vector<std::int64_t> leading(row.logits.dims().begin(), row.logits.dims().end() - 1);
    const auto add_case = [&](const std::string& op, std::vector<CaseInput> inputs,
                              std::function<CaseOutputs(Graph&, CaseInputs)> build) {
      cases.push_back({.name = op + "_" + row.name,
                       .inputs = std::move(inputs),
                       .build = std::move(build),
                       .timed = row.timed});
    };
    add_case("softmax", {f32_uniform(row.logits, -4, 4)},
             [](Graph&, CaseInputs in) { return softmax(in[0]); });
    add_case("log_softmax", {f32_uniform(row.logits, -4, 4)},
             [](Graph&, CaseInputs in) { return log_softmax(in[0]); });
    add_case("sparse_cross_entropy",
             {f32_uniform(row.logits, -4, 4), integers(Shape(leading), classes, row.labels)},
             [](Graph&, CaseInputs in) { return sparse_cross_entropy(in[0], in[1]); });
    // Here the gradient depends on the losses.
    add_case("sparse_cross_entropy_squared",
             {f32_uniform(row.logits, -4, 4), integers(Shape(leading), classes, row.labels)},
             [](Graph&, CaseInputs in) { return square(sparse_cross_entropy(in[0], in[1])); });
    // Becomes one node with its gradient and sum if kernels offer that.
    add_case("sparse_cross_entropy_sum",
             {f32_uniform(row.logits, -4, 4), integers(Shape(leading), classes, row.labels)},
             [](Graph&, CaseInputs in) { return reduce_sum(sparse_cross_entropy(in[0], in[1])); });
    for (const bool sum : {false, true}) {
      add_case(sum ? "sparse_cross_entropy_gradient_and_sum" : "sparse_cross_entropy_gradient",
               {f32_uniform(row.logits, -4, 4), integers(Shape(leading), classes, row.labels),
                f32(Shape(leading))},
               [sum](Graph& graph, CaseInputs in) {
                 return graph.add(Op::SparseCrossEntropy, in, sum ? Attrs{{"sum", true}} : Attrs{});
               });
      cases.back().differentiable = false;
    }
    add_case("cross_entropy", {f32_uniform(row.logits, -4, 4), f32_uniform(row.logits, 0, 1)},
             [](Graph&, CaseInputs in) { return cross_entropy(in[0], in[1]); });
    add_case("sigmoid_cross_entropy",
             {f32_uniform(row.logits, -4, 4), f32_uniform(row.logits, 0, 1)},
             [](Graph&, CaseInputs in) { return sigmoid_cross_entropy(in[0], in[1]); });
  }
  return cases;
}

}  // namespace lockstep
