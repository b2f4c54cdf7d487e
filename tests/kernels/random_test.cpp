#include "kernels/cases_random.h"

#include "kernels/op_case_check.h"

namespace lockstep {
namespace {

LOCKSTEP_OP_CASES(Random, random_cases());

// Dropout of ones at a step, for a piece whose first sample has index `first` in the global batch.
std::vector<float> dropped(Shape shape, DropoutOptions options, std::int64_t step,
                           std::int64_t first) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, shape});
  graph.output("y", dropout(x, options));
  State state(host(), 1);
  Executor executor(make_plan(std::move(graph), reference_kernels()), reference_kernels(), state);
  Tensor input = executor.input("x");
  for (float& value : input.values<float>()) value = 1;
  executor.input(kRandomStateInput)
      .copy_from(Tensor::of(std::vector<std::int64_t>{step, first}, Shape{2}));
  executor.run();
  const Tensor output = executor.output("y");
  const auto values = output.values<float>();
  return {values.begin(), values.end()};
}

TEST(Dropout, FollowsItsDefinition) {
  const DropoutOptions options{.rate = 0.3, .seed = 11, .key = 0x123456789abcdef0};
  const std::int64_t step = 0x1'0000'0007;
  const std::int64_t size = 5 * 41;
  const std::vector<float> y = dropped({3, 5, 41}, options, step, 6);
  for (std::int64_t sample = 0; sample < 3; ++sample) {
    for (std::int64_t e = 0; e < size; ++e) {
      const PhiloxBlock words =
          philox(make_key(options.seed, options.key),
                 {static_cast<std::uint32_t>(e / 4), static_cast<std::uint32_t>(6 + sample), 7, 1});
      const bool drop = to_unit_float(words[static_cast<std::size_t>(e % 4)]) < options.rate;
      ASSERT_EQ(y[static_cast<std::size_t>(sample * size + e)], drop ? 0.0f : 1.0f / 0.7f)
          << sample << " " << e;
    }
  }
}

TEST(Dropout, DropsAtItsRateAndKeepsTheMean) {
  for (const double rate : {0.1, 0.5, 0.8}) {
    const std::vector<float> y = dropped({64, 1000}, {.rate = rate, .seed = 5}, 1, 0);
    double zeros = 0;
    double sum = 0;
    for (const float value : y) {
      zeros += value == 0;
      sum += static_cast<double>(value);
    }
    const auto count = static_cast<double>(y.size());
    // Five standard deviations of a binomial proportion.
    const double slack = 5 * std::sqrt(rate * (1 - rate) / count);
    EXPECT_NEAR(zeros / count, rate, slack);
    EXPECT_NEAR(sum / count, 1.0, slack / (1 - rate));
  }
}

TEST(Dropout, ASampleHasTheSameMaskOnEveryReplica) {
  const DropoutOptions options{.rate = 0.5, .seed = 2, .key = 9};
  const std::vector<float> whole = dropped({8, 37}, options, 4, 0);
  std::vector<float> pieces;
  for (const auto& [first, count] : std::vector<std::pair<int, int>>{{0, 3}, {3, 4}, {7, 1}}) {
    const std::vector<float> piece = dropped({count, 37}, options, 4, first);
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(pieces, whole);
}

TEST(Dropout, StepsSeedsAndLayersDrawDifferentMasks) {
  const auto base = dropped({4, 64}, {.rate = 0.5, .seed = 1, .key = 1}, 1, 0);
  EXPECT_NE(base, dropped({4, 64}, {.rate = 0.5, .seed = 1, .key = 1}, 2, 0));
  EXPECT_NE(base, dropped({4, 64}, {.rate = 0.5, .seed = 2, .key = 1}, 1, 0));
  EXPECT_NE(base, dropped({4, 64}, {.rate = 0.5, .seed = 1, .key = 2}, 1, 0));
  EXPECT_EQ(base, dropped({4, 64}, {.rate = 0.5, .seed = 1, .key = 1}, 1, 0));
}

TEST(Dropout, ARateOfZeroAddsNoNodeAndOneIsRefused) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {2, 2}});
  EXPECT_EQ(dropout(x, {.rate = 0}), x);
  EXPECT_EQ(graph.nodes().size(), 1u);
  EXPECT_THROW(dropout(x, {.rate = 1}), UsageError);
  EXPECT_THROW(dropout(x, {.rate = -0.1}), UsageError);
}

TEST(Dropout, AllDropoutsOfAGraphShareOneState) {
  Graph graph;
  const Value x = graph.input("x", {DType::F32, {2, 2}});
  dropout(dropout(x, {.key = 1}), {.key = 2});
  EXPECT_EQ(graph.inputs().size(), 2u);
}

}  // namespace
}  // namespace lockstep
