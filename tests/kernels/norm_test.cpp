#include "kernels/cases_norm.h"

#include "kernels/evaluate.h"
#include "kernels/op_case_check.h"

namespace lockstep {
namespace {

LOCKSTEP_OP_CASES(Norm, norm_cases());

using Floats = std::vector<float>;
using Inputs = std::span<const Value>;

std::vector<Tensor> normalised(const Tensor& x, Floats gamma, Floats beta, double epsilon) {
  return evaluate_all({x, floats(gamma), floats(beta)}, [&](Inputs in) {
    const BatchNormResult result = batch_norm(in[0], in[1], in[2], epsilon);
    return std::vector<Value>{result.y, result.mean, result.variance};
  });
}

TEST(NormKernels, BatchNormUsesTheBiasedStatisticsOfEachChannel) {
  const auto results =
      normalised(floats({1, 10, 3, 10, 5, 10, 7, 10}, {4, 2}), {1, 2}, {0, 3}, 0.0);
  EXPECT_EQ(list<float>(results[1]), (Floats{4, 10}));
  EXPECT_EQ(list<float>(results[2]), (Floats{5, 0}));
  EXPECT_NEAR(list<float>(results[0])[0], -3 / std::sqrt(5.0), 1e-6);
  EXPECT_NEAR(list<float>(results[0])[6], 3 / std::sqrt(5.0), 1e-6);
}

TEST(NormKernels, VarianceKeepsItsPrecisionFarFromZero) {
  // The spread is 1e-4 of the mean: the difference of squares in f32 would lose it completely.
  Floats values;
  for (int i = 0; i < 1000; ++i) values.push_back(10000.0f + static_cast<float>(i % 2));
  const auto results = normalised(floats(values, {1000, 1}), {1}, {0}, 1e-3);
  EXPECT_FLOAT_EQ(list<float>(results[2])[0], 0.25f);
}

TEST(NormKernels, AnEmptyBatchHasZeroStatisticsAndNoNaN) {
  const auto results = normalised(Tensor(DType::F32, {0, 3}), {1, 1, 1}, {0, 0, 0}, 1e-3);
  EXPECT_EQ(list<float>(results[1]), (Floats{0, 0, 0}));
  EXPECT_EQ(list<float>(results[2]), (Floats{0, 0, 0}));
}

TEST(NormKernels, FusionChangesNeitherResultNorGradients) {
  const OpCase separate{.name = "residual_relu",
                        .inputs = {f32({5, 3, 4}), f32_positive({4}), f32({4}), f32({5, 3, 4})},
                        .build = [](Graph&, CaseInputs in) {
                          return relu(add(batch_norm(in[0], in[1], in[2]).y, in[3]));
                        }};
  OpCase fused = separate;
  fused.build = [](Graph&, CaseInputs in) {
    return fused_batch_norm({in[0], in[1], in[2], in[3]});
  };
  CaseRun a(separate, build_graph(separate, DType::F32).graph, reference_kernels());
  CaseRun b(fused, build_graph(fused, DType::F32).graph, reference_kernels());
  a.run();
  b.run();
  const auto expected = a.results();
  const auto actual = b.results();
  ASSERT_EQ(expected.size(), 5u);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LT(relative_error(actual[i].second, expected[i].second), 1e-6) << expected[i].first;
  }
}

TEST(NormKernels, InferenceFusesTheAdditionAndTheReluAfterIt) {
  Graph graph;
  const ValueType image{DType::F32, {2, 4, 4, 8}};
  const Value x = graph.input("x", image);
  const Value residual = graph.input("residual", image);
  const Value channels = graph.input("channels", {DType::F32, {8}});
  const Value y = batch_norm_inference(x, channels, channels, channels, channels);
  graph.output("y", relu(add(residual, y)));
  if (!cpu_kernels().fuses_activation(graph, graph.producer(y.id()), "relu")) {
    GTEST_SKIP() << "built without oneDNN";
  }
  optimize(graph, cpu_kernels());
  std::vector<Op> ops;
  for (const Node& node : graph.nodes()) {
    if (node.op != Op::Input) ops.push_back(node.op);
  }
  EXPECT_EQ(ops, std::vector<Op>{Op::BatchNormInference});
}

TEST(NormKernels, ParametersOfAnotherSizeAreRefused) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {2, 4, 4, 3}});
  const Value gamma = graph.input("gamma", {DType::F32, {4}});
  try {
    batch_norm(x, gamma, gamma);
    FAIL() << "accepted";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "[batch_norm] gamma must be f32(3,) for the input f32(2, 4, 4, 3), not f32(4,)");
  }
}

}  // namespace
}  // namespace lockstep
