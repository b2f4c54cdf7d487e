// Changes of layout by reorder nodes.
#include <numeric>

#include "kernels/evaluate.h"

namespace lockstep {
namespace {

TEST(ReorderKernels, ReorderingBackRestoresTheElements) {
  const std::vector<Layout> layouts{
      {.order = {1, 0, 2}, .blocks = {}},
      {.order = {0, 2, 1}, .blocks = {{2, 4}}},
      {.order = {2, 0, 1}, .blocks = {{0, 2}, {2, 3}, {0, 2}}},
  };
  std::vector<float> values(3 * 4 * 5);
  std::iota(values.begin(), values.end(), 1.0f);
  for (const Layout& layout : layouts) {
    const Tensor back = evaluate({floats(values, {3, 4, 5})}, [&](std::span<const Value> in) {
      return reorder(reorder(in[0], layout), {});
    });
    EXPECT_EQ(list<float>(back), values) << layout.str();
  }
}

TEST(ReorderKernels, ABlockedAxisIsPaddedWithZeros) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {2, 3}});
  reorder(x, {.order = {1, 0}, .blocks = {{1, 2}}});
  const KernelCall call{graph, graph.nodes().back()};
  const auto kernel = reference_kernels().find(call).make(call);
  const std::array<float, 6> from{1, 2, 3, 4, 5, 6};
  std::array<float, 8> to;
  to.fill(9);
  Binding binding;
  binding.inputs = {reinterpret_cast<const std::byte*>(from.data())};
  binding.outputs = {reinterpret_cast<std::byte*>(to.data())};
  kernel->bind(binding);
  kernel->run(*host().make_stream());
  EXPECT_EQ(to, (std::array<float, 8>{1, 2, 4, 5, 3, 0, 6, 0}));
}

}  // namespace
}  // namespace lockstep
