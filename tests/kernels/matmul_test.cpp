#include "kernels/cases_matmul.h"

#include <omp.h>

#include <limits>

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

std::string matmul_refusal(Shape a, Shape b, MatMulOptions options = {}) {
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
  EXPECT_EQ(matmul_refusal({32, 784}, {512, 10}),
            "[matmul] dense_1: inner dimensions differ: (32, 784) × (512, 10)");
  EXPECT_EQ(matmul_refusal({32, 784}, {512, 10}, {.transpose_b = true}),
            "[matmul] dense_1: inner dimensions differ: (32, 784) × (512, 10)ᵀ");
  EXPECT_NE(matmul_refusal({2, 3, 4}, {5, 4, 6}).find("leading axes differ: (2, 3, 4) × (5, 4, 6)"),
            std::string::npos);
  EXPECT_NE(matmul_refusal({4}, {4, 6}).find("at least two axes"), std::string::npos);
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

// In the memory of what the product is added to, and elsewhere; divided among threads by rows, by
// columns and by terms.
TEST(MatMulKernels, AProductThatAccumulatesIsAddedUnlessItIsTheFirst) {
  const int before = omp_get_max_threads();
  const auto sum = [](const KernelLibrary& library, const MatMulOptions& options, bool first,
                      bool in_place) {
    const std::int64_t m = options.transpose_a ? 785 : 32, n = options.transpose_b ? 785 : 131;
    const std::int64_t k = options.transpose_a || options.transpose_b ? 32 : 785;
    Graph graph;
    const Value a = graph.input("a", {DType::F32, options.transpose_a ? Shape{k, m} : Shape{m, k}});
    const Value b = graph.input("b", {DType::F32, options.transpose_b ? Shape{n, k} : Shape{k, n}});
    const auto total = std::make_shared<const Variable>(
        Variable{.name = "total", .dtype = DType::F32, .shape = {m, n}, .initializer = {}});
    const Value inputs[] = {a, b, graph.variable(total), graph.input("added", {DType::F32, {}})};
    const Value y = graph.add(Op::MatMul, inputs,
                              {{"transpose_a", options.transpose_a},
                               {"transpose_b", options.transpose_b},
                               {kAccumulates, true}})[0];
    if (in_place) {
      assign(total, y);
    } else {
      graph.output("y", y);
    }
    State state(host(), 1);
    Executor executor(make_plan(std::move(graph), library), library, state);
    Tensor start(DType::F32, {m, n});
    fill(start, {}, 1, 3);
    if (first) {
      for (float& value : start.values<float>()) value = std::numeric_limits<float>::quiet_NaN();
    }
    state.set(*total, start);
    Tensor left = executor.input("a"), right = executor.input("b");
    fill(left, {}, 1, 1);
    fill(right, {}, 1, 2);
    executor.input("added").values<float>()[0] = first ? 0.0F : 1.0F;
    executor.run();
    executor.wait();
    return in_place ? state.get(*total) : executor.output("y").clone();
  };
  for (const int threads : {1, 3}) {
    omp_set_num_threads(threads);
    for (const MatMulOptions& options : {MatMulOptions{}, MatMulOptions{.transpose_a = true},
                                         MatMulOptions{.transpose_b = true}}) {
      for (const bool first : {false, true}) {
        const Tensor expected = sum(reference_kernels(), options, first, false);
        for (const bool in_place : {false, true}) {
          const Tensor actual = sum(cpu_kernels(), options, first, in_place);
          const auto as = actual.values<float>(), es = expected.values<float>();
          for (std::size_t i = 0; i < es.size(); ++i) ASSERT_NEAR(as[i], es[i], 1e-4) << i;
        }
      }
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
