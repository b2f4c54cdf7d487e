#include "kernels/cases_matmul.h"

#include <omp.h>

#include "kernels/evaluate.h"
#include "kernels/op_case_check.h"

namespace lockstep {
namespace {

LOCKSTEP_OP_CASES(MatMul, matmul_cases());

using Floats = std::vector<float>;
using Inputs = std::span<const Value>;

Floats product(const Tensor& a, const Tensor& b, MatMulOptions options) {
  return list<float>(evaluate({a, b}, [&](Inputs in) { return matmul(in[0], in[1], options); }));
}

TEST(MatMulKernels, TheReferenceMultipliesRowsByColumns) {
  const Tensor a = floats({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor a_transposed = floats({1, 4, 2, 5, 3, 6}, {3, 2});
  const Tensor b = floats({1, 0, 2, 1, 0, 3}, {3, 2});
  const Tensor b_transposed = floats({1, 2, 0, 0, 1, 3}, {2, 3});
  const Floats expected{5, 11, 14, 23};
  EXPECT_EQ(product(a, b, {}), expected);
  EXPECT_EQ(product(a_transposed, b, {.transpose_a = true}), expected);
  EXPECT_EQ(product(a, b_transposed, {.transpose_b = true}), expected);
  EXPECT_EQ(product(a_transposed, b_transposed, {.transpose_a = true, .transpose_b = true}),
            expected);
}

TEST(MatMulKernels, OneMatrixIsUsedForAllBatches) {
  const Tensor a = floats({1, 2, 3, 4}, {2, 1, 2});
  const Tensor b = floats({1, 0, 0, 1}, {2, 2});
  EXPECT_EQ(product(a, b, {}), (Floats{1, 2, 3, 4}));
}

TEST(MatMulKernels, TheBiasIsAddedBeforeTheActivation) {
  const Tensor y =
      evaluate({floats({1, 2}, {1, 2}), floats({1, -1, 1, -1}, {2, 2}), floats({-1, 1})},
               [](Inputs in) { return matmul(in[0], in[1], in[2], {.activation = "relu"}); });
  EXPECT_EQ(list<float>(y), (Floats{2, 0}));
}

std::string refusal(Shape a, Shape b, MatMulOptions options = {}) {
  Graph graph;
  const Graph::NameScope scope(graph, "dense_1");
  const Value left = graph.input("a", {DType::F32, std::move(a)});
  const Value right = graph.input("b", {DType::F32, std::move(b)});
  try {
    matmul(left, right, options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(MatMulKernels, MismatchedMatricesAreRefusedWithBothShapes) {
  EXPECT_EQ(refusal({32, 784}, {512, 10}),
            "[matmul] dense_1: inner dimensions differ: (32, 784) × (512, 10)");
  EXPECT_EQ(refusal({32, 784}, {512, 10}, {.transpose_b = true}),
            "[matmul] dense_1: inner dimensions differ: (32, 784) × (512, 10)ᵀ");
  EXPECT_NE(refusal({2, 3, 4}, {5, 4, 6}).find("leading axes differ: (2, 3, 4) × (5, 4, 6)"),
            std::string::npos);
  EXPECT_NE(refusal({4}, {4, 6}).find("at least two axes"), std::string::npos);
}

TEST(MatMulKernels, AFusedActivationThatNeedsItsInputHasNoGradient) {
  Graph graph;
  const Value a = graph.input("a", {DType::F32, {2, 2}});
  const Value y = matmul(a, a, {.activation = "gelu"});
  EXPECT_THROW(gradients(y, std::vector<Value>{a}), UsageError);
}

// Products that are divided among threads by rows, by columns and by terms, with extents that do
// not divide evenly.
TEST(MatMulKernels, AnyNumberOfThreadsGivesTheSameProduct) {
  const int before = omp_get_max_threads();
  for (const int threads : {1, 2, 3, 5, 16, 17}) {
    SCOPED_TRACE(threads);
    omp_set_num_threads(threads);
    for (const auto& [m, k, n] : {std::array<std::int64_t, 3>{32, 785, 131}, {7, 1025, 203}}) {
      const OpCase dense{
          .name = "dense",
          .inputs = {f32({m, k}), f32_uniform({k, n}, -0.1, 0.1), f32({n})},
          .build =
              [](Graph&, CaseInputs in) {
                return matmul(in[0], in[1], in[2], {.activation = "relu"});
              },
      };
      expect_agreement(dense);  // including both gradients, one of each kind
    }
  }
  omp_set_num_threads(before);
}

TEST(MatMulKernels, CostsTwoOperationsPerTerm) {
  Graph graph;
  const Value a = graph.input("a", {DType::F32, {3, 4, 5}});
  const Value b = graph.input("b", {DType::F32, {5, 7}});
  matmul(a, b);
  const Cost cost = cost_of(graph, graph.nodes().back());
  EXPECT_EQ(cost.flops, 2.0 * 3 * 4 * 5 * 7);
  EXPECT_EQ(cost.bytes, 4.0 * (3 * 4 * 5 + 5 * 7 + 3 * 4 * 7));
}

}  // namespace
}  // namespace lockstep
