#include "kernels/blocked_cases.h"

#include <algorithm>

#include "kernels/op_case_check.h"

namespace lockstep {
namespace {

// Other cases test the gradient rules; these test the kernels.
class BlockedOps : public testing::TestWithParam<OpCase> {};
TEST_P(BlockedOps, CpuKernelsAgreeWithTheReference) {
  expect_agreement(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Pool, BlockedOps, testing::ValuesIn(blocked_pool_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(Norm, BlockedOps, testing::ValuesIn(blocked_norm_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(ThinConv, BlockedOps, testing::ValuesIn(thin_conv_cases()), case_name);

// The kernel chosen for the first node of an op in a case, and the channels per block of one of the
// node's values (counting inputs, then outputs); 0: row-major.
struct Chosen {
  std::string kernel = "none";
  std::int64_t block = 0;
};
Chosen chosen_for(const OpCase& op_case, Op op, std::size_t value) {
  Graph graph = build_graph(op_case, DType::F32).graph;
  optimize(graph, cpu_kernels());
  for (const Node& node : graph.nodes()) {
    if (node.op != op) continue;
    const std::size_t inputs = node.inputs.size();
    const ValueId id = value < inputs ? node.inputs[value] : node.outputs[value - inputs];
    const Layout& layout = graph.info(id).layout;
    return {std::string(cpu_kernels().find({graph, node}).name),
            layout.blocks.empty() ? 0 : layout.blocks.back().second};
  }
  return {};
}

bool has_vector_kernels() {
  const std::string kernel = chosen_for(blocked_norm_cases().front(), Op::BatchNorm, 0).kernel;
  return !kernel.starts_with("reference");
}

// Channels per block on this machine: the number of lanes of its vectors, a divisor of sixteen.
std::int64_t lanes() {
  for (const OpCase& op_case : blocked_norm_cases()) {
    if (op_case.name != "batch_norm_16_blocked") continue;
    return chosen_for(op_case, Op::BatchNorm, 0).block;
  }
  return 0;
}

// The block size of a case, whose second input is the convolution's filter: 0 if the channels are
// not a multiple of it.
std::int64_t block_of(const OpCase& op_case) {
  return op_case.inputs[1].shape[3] % lanes() == 0 ? lanes() : 0;
}

TEST(BlockedCases, PoolsAndNormsAfterAConvolutionReadBlocks) {
  if (!has_vector_kernels()) GTEST_SKIP() << "built without oneDNN";
  ASSERT_TRUE(lanes() == 8 || lanes() == 16) << lanes();
  const auto expected = [](const OpCase& op_case) {
    return op_case.name.find("blocked") != std::string::npos ? block_of(op_case) : 0;
  };
  for (const OpCase& op_case : blocked_pool_cases()) {
    const bool largest = op_case.name.starts_with("max");
    // A max pool after a convolution with whole blocks is fused into it, as its first output.
    const bool fused = largest && expected(op_case) > 0;
    const Op op = fused ? Op::Conv2D : largest ? Op::MaxPool : Op::AvgPool;
    const Chosen forward = chosen_for(op_case, op, fused ? op_case.inputs.size() : 0);
    EXPECT_EQ(forward.block, expected(op_case)) << op_case.name;
    EXPECT_TRUE(forward.kernel.starts_with("cpu.")) << op_case.name << ": " << forward.kernel;
    if (largest) {
      EXPECT_EQ(chosen_for(op_case, Op::MaxPoolGrad, 1).block, expected(op_case)) << op_case.name;
    }
  }
  for (const OpCase& op_case : blocked_norm_cases()) {
    EXPECT_EQ(chosen_for(op_case, Op::BatchNorm, 0).block, expected(op_case)) << op_case.name;
    EXPECT_EQ(chosen_for(op_case, Op::BatchNormGrad, 1).block, expected(op_case)) << op_case.name;
  }
}

// The gradient of a norm reads beta instead of an image if it only needs that image's sign, and the
// summands of a sum that has no other reader.
TEST(BlockedCases, GradientsOfNormsReadNoMoreImagesThanTheyNeed) {
  if (!has_vector_kernels()) GTEST_SKIP() << "built without oneDNN";
  for (const OpCase& op_case : blocked_norm_cases()) {
    Graph graph = build_graph(op_case, DType::F32).graph;
    optimize(graph, cpu_kernels());
    const auto found = std::ranges::find(graph.nodes(), Op::BatchNormGrad, &Node::op);
    ASSERT_NE(found, graph.nodes().end()) << op_case.name;
    const bool masks = op_case.name.find("_relu") != std::string::npos;
    const bool adds = op_case.name.find("_residual") != std::string::npos;
    EXPECT_EQ(found->attrs.has("beta"), masks && !adds) << op_case.name;
    EXPECT_EQ(found->attrs.has("summands"), op_case.name.find("_twice") != std::string::npos)
        << op_case.name;
  }
}

TEST(BlockedCases, OneChannelWithAPoolUsesTheThinKernel) {
  if (!has_vector_kernels()) GTEST_SKIP() << "built without oneDNN";
  ASSERT_GT(lanes(), 0);
  for (const OpCase& op_case : thin_conv_cases()) {
    if (op_case.name.find("pooled") == std::string::npos || block_of(op_case) == 0) continue;
    EXPECT_EQ(chosen_for(op_case, Op::Conv2DGradFilter, 1).kernel, "cpu.thin_conv2d_grad_filter")
        << op_case.name;
  }
}

}  // namespace
}  // namespace lockstep
