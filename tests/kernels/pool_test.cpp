#include "kernels/cases_pool.h"

#include <limits>

#include "kernels/evaluate.h"
#include "kernels/op_case_check.h"

namespace lockstep {
namespace {

LOCKSTEP_OP_CASES(Pool, pool_cases());

using Floats = std::vector<float>;
using Inputs = std::span<const Value>;

std::vector<Tensor> max_with_places(const Tensor& x, const PoolOptions& options) {
  return evaluate_all({x}, [&](Inputs in) {
    const Value y = max_pool(in[0], options);
    const Node& node = y.graph().producer(y.id());
    return std::vector<Value>{y, Value(&y.graph(), node.outputs[1])};
  });
}

TEST(PoolKernels, TheFirstOfTheLargestWins) {
  const auto results = max_with_places(floats({1, 5, 5, 2, 7, 0, 7, 7}, {1, 2, 4, 1}), {});
  EXPECT_EQ(list<float>(results[0]), (Floats{7, 7}));
  EXPECT_EQ(list<std::uint8_t>(results[1]), (std::vector<std::uint8_t>{2, 2}));
}

TEST(PoolKernels, PaddingNeverWins) {
  const auto results =
      max_with_places(floats({-3, -1, -4, -2}, {1, 2, 2, 1}),
                      {.window = {3, 3}, .strides = {1, 1}, .padding = {1, 1, 1, 1}});
  EXPECT_EQ(list<float>(results[0]), (Floats{-1, -1, -1, -1}));
  // The index counts the padding: it is a position in the window, not in the image.
  EXPECT_EQ(list<std::uint8_t>(results[1]), (std::vector<std::uint8_t>{5, 4, 2, 1}));
}

TEST(PoolKernels, NaNIsKept) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Floats& window : {Floats{nan, 1, 2, 3}, Floats{1, 2, nan, 3}}) {
    const auto results = max_with_places(floats(window, {1, 2, 2, 1}), {});
    EXPECT_TRUE(std::isnan(list<float>(results[0])[0]));
  }
}

TEST(PoolKernels, PaddingDoesNotCountInTheMean) {
  const Tensor y = evaluate({floats({1, 2, 3, 6}, {1, 2, 2, 1})}, [](Inputs in) {
    return avg_pool(in[0], {.window = {2, 2}, .strides = {1, 1}, .padding = {1, 0, 1, 0}});
  });
  EXPECT_EQ(list<float>(y), (Floats{1, 1.5f, 2, 3}));
}

TEST(PoolKernels, AWindowThatCouldCoverOnlyPaddingIsRefused) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {1, 4, 4, 1}});
  EXPECT_THROW(max_pool(x, {.window = {2, 2}, .padding = {2, 0, 0, 0}}), UsageError);
  EXPECT_THROW(avg_pool(x, {.window = {5, 5}}), UsageError);
}

}  // namespace
}  // namespace lockstep
