// Compares pointwise kernels, which are compiled when a plan is made, with the reference: the
// graphs of kernels/drawn_chains.h, 16-bit floats, sizes around vectors and tiles, and more
// segments than one launch holds.
#include "gpu/gpu.h"
#include "kernels/drawn_chains.h"
#include "lockstep/graph/ops/ops.h"

namespace lockstep {
namespace {

int count(const Graph& graph, Op op) {
  return static_cast<int>(std::ranges::count(graph.nodes(), op, &Node::op));
}

// Runs a graph on the GPU after the passes, for enough steps to be issued, recorded and launched,
// and compares the results with the reference.
void expect_same(Graph graph, double tolerance) {
  constexpr int kSteps = 4;
  Graph optimized = clone(graph);
  optimize(optimized, gpu_kernels());
  EXPECT_GT(count(optimized, Op::Pointwise) + count(optimized, Op::PointwiseAssign), 0)
      << print(optimized);
  const auto expected = results_of_steps(make_plan(std::move(graph), reference_kernels()),
                                         reference_kernels(), host(), kSteps);
  const auto actual = results_of_steps(make_plan(std::move(optimized), gpu_kernels()),
                                       gpu_kernels(), gpu(), kSteps);
  for (const auto& [name, tensor] : expected) {
    const auto found = actual.find(name);
    EXPECT_TRUE(found != actual.end() || name.starts_with("v")) << name;
    if (found != actual.end()) expect_close(found->second, tensor, tolerance, name);
  }
}

class GpuDrawnChains : public ::testing::TestWithParam<int> {};

TEST_P(GpuDrawnChains, MatchTheReference) {
  LOCKSTEP_NEEDS_GPU();
  expect_same(DrawnChain(GetParam()).take(), 1e-4);
}

INSTANTIATE_TEST_SUITE_P(All, GpuDrawnChains, ::testing::Range(0, 40));

TEST(GpuPointwise, EveryActivationAndItsGradientMatch) {
  LOCKSTEP_NEEDS_GPU();
  for (const char* kind : {"relu", "relu6", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh",
                           "sigmoid", "softplus"}) {
    SCOPED_TRACE(kind);
    Graph graph;
    const Value x = graph.input("x", {DType::F32, Shape{1001}}) * 3.0;
    const Value dy = graph.input("dy", {DType::F32, Shape{1001}});
    const Value y = activation(x, kind, 0.3);
    graph.output("y", y);
    graph.output("dx", activation_grad(dy, activation_grad_uses_output(kind) ? y : x, kind, 0.3));
    expect_same(std::move(graph), 1e-5);
  }
}

TEST(GpuPointwise, SizesAroundPacksAndTilesMatch) {
  LOCKSTEP_NEEDS_GPU();
  for (const std::int64_t n : {1, 3, 4, 5, 255, 1024, 4095, 4096, 4097, 70001, 1 << 20}) {
    SCOPED_TRACE(n);
    Graph graph;
    const Value x = graph.input("x", {DType::F32, Shape{n}});
    const Value y = graph.input("y", {DType::F32, Shape{n}});
    const Value rate = graph.input("rate", {DType::F32, {}});
    graph.output("z", select(less(x, y), x * rate + y, cast(greater(x, rate), DType::F32)));
    expect_same(std::move(graph), 1e-6);
  }
}

TEST(GpuPointwise, SixteenBitFloatsMatch) {
  LOCKSTEP_NEEDS_GPU();
  for (const DType dtype : {DType::F16, DType::BF16}) {
    for (const std::int64_t n : {1, 7, 8, 1000, 100003}) {
      Graph graph;
      const Value x = cast(graph.input("x", {DType::F32, Shape{n}}), dtype);
      const Value y = cast(graph.input("y", {DType::F32, Shape{n}}), dtype);
      // Ops that are not elementwise in between, so that 16-bit values are read and written.
      const Value hidden = pad(pad(x, Ints{1}, Ints{0}), Ints{0}, Ints{1});
      const Value inner = slice(hidden, Ints{1}, Ints{n});
      const Value z = activation(inner * y + x, "gelu") * 0.5;
      graph.output("narrow", cast(reduce_max(z), DType::F32));
      graph.output("wide", cast(z, DType::F32));
      expect_same(std::move(graph), dtype == DType::F16 ? 4e-3 : 3e-2);
    }
  }
}

TEST(GpuPointwise, MoreSegmentsThanOneLaunchHoldsMatch) {
  LOCKSTEP_NEEDS_GPU();
  Graph graph;
  for (int i = 0; i < 300; ++i) {
    const Shape channels{1 + i * 37 % 5000};
    const VariableRef average = zero_variable(fmt::format("average{}", i), channels);
    const Value x = graph.input(fmt::format("x{}", i), {DType::F32, channels});
    assign(average, graph.variable(average) * 0.9 + x * 0.1);
  }
  Graph optimized = clone(graph);
  optimize(optimized, gpu_kernels());
  EXPECT_EQ(count(optimized, Op::PointwiseAssign), 1);
  EXPECT_EQ(count(optimized, Op::Assign), 0);
  expect_same(std::move(graph), 1e-6);
}

}  // namespace
}  // namespace lockstep
