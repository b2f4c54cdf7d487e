#include "kernels/blocked_cases.h"

#include "kernels/op_case_check.h"

namespace lockstep {
namespace {

// The gradient rules are those of other cases; here it is the kernels that differ.
class BlockedOps : public testing::TestWithParam<OpCase> {};
TEST_P(BlockedOps, CpuKernelsAgreeWithTheReference) {
  expect_agreement(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Pool, BlockedOps, testing::ValuesIn(blocked_pool_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Norm, BlockedOps, testing::ValuesIn(blocked_norm_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(ThinConv, BlockedOps, testing::ValuesIn(thin_conv_cases()), case_name);

// The kernel that computes the first node of an op in a case, and whether one of the node's inputs
// lies in blocks.
struct Chosen {
  std::string kernel = "none";
  bool blocked = false;
};
Chosen chosen_for(const OpCase& op_case, Op op, std::size_t input) {
  Graph graph = build_graph(op_case, DType::F32).graph;
  optimize(graph, cpu_kernels());
  for (const Node& node : graph.nodes()) {
    if (node.op != op) continue;
    return {std::string(cpu_kernels().find({graph, node}).name),
            !graph.info(node.inputs[input]).layout.row_major()};
  }
  return {};
}

bool has_vector_kernels() {
  const std::string kernel = chosen_for(blocked_norm_cases().front(), Op::BatchNorm, 0).kernel;
  return !kernel.starts_with("reference");
}

TEST(BlockedCases, PoolsAndNormsBehindAConvolutionReadBlocks) {
  if (!has_vector_kernels()) GTEST_SKIP() << "built without oneDNN";
  for (const OpCase& op_case : blocked_pool_cases()) {
    const bool expected = op_case.name.find("blocked") != std::string::npos;
    const bool largest = op_case.name.starts_with("max");
    const Chosen forward = chosen_for(op_case, largest ? Op::MaxPool : Op::AvgPool, 0);
    EXPECT_EQ(forward.blocked, expected) << op_case.name;
    EXPECT_TRUE(forward.kernel.starts_with("cpu.")) << op_case.name << ": " << forward.kernel;
    if (largest) {
      EXPECT_EQ(chosen_for(op_case, Op::MaxPoolGrad, 1).blocked, expected) << op_case.name;
    }
  }
  for (const OpCase& op_case : blocked_norm_cases()) {
    const bool expected = op_case.name.find("blocked") != std::string::npos;
    EXPECT_EQ(chosen_for(op_case, Op::BatchNorm, 0).blocked, expected) << op_case.name;
    EXPECT_EQ(chosen_for(op_case, Op::BatchNormGrad, 1).blocked, expected) << op_case.name;
  }
}

TEST(BlockedCases, OneChannelBehindAPoolTakesTheThinKernel) {
  if (!has_vector_kernels()) GTEST_SKIP() << "built without oneDNN";
  for (const OpCase& op_case : thin_conv_cases()) {
    if (op_case.name.find("pooled") == std::string::npos) continue;
    EXPECT_EQ(chosen_for(op_case, Op::Conv2DGradFilter, 1).kernel, "cpu.thin_conv2d_grad_filter")
        << op_case.name;
  }
}

}  // namespace
}  // namespace lockstep
