#include <omp.h>

#include <limits>
#include <numeric>

#include "kernels/cases_reduce.h"
#include "kernels/evaluate.h"
#include "kernels/op_case_check.h"

namespace lockstep {
namespace {

LOCKSTEP_OP_CASES(Reduce, reduce_cases());

using Floats = std::vector<float>;
using Inputs = std::span<const Value>;

// Sums by visiting every index: slow but obviously right.
std::vector<double> naive_sum(const Tensor& x, const std::vector<int>& axes) {
  const Shape& shape = x.shape();
  std::vector<std::int64_t> kept;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    const bool reduced = std::find(axes.begin(), axes.end(), axis) != axes.end();
    kept.push_back(reduced ? 1 : shape[axis]);
  }
  const Shape result(kept);
  std::vector<double> sums(static_cast<std::size_t>(result.elements()));
  const auto values = x.values<float>();
  for (std::int64_t i = 0; i < shape.elements(); ++i) {
    std::int64_t at = 0;
    for (int axis = 0; axis < shape.rank(); ++axis) {
      const auto a = static_cast<std::size_t>(axis);
      at += i / shape.strides()[a] % shape[axis] % kept[a] * result.strides()[a];
    }
    sums[static_cast<std::size_t>(at)] += values[static_cast<std::size_t>(i)];
  }
  return sums;
}

TEST(ReduceKernels, EverySetOfAxesMatchesTheNaiveSum) {
  Tensor x(DType::F32, {3, 4, 5, 6});
  fill(x, {}, 1, 1);
  for (unsigned set = 1; set < 16; ++set) {
    std::vector<int> axes;
    for (int axis = 0; axis < 4; ++axis) {
      if (set >> axis & 1) axes.push_back(axis);
    }
    const Tensor y = evaluate({x}, [&](Inputs in) {
      return reduce_sum(in[0], {.axes = Ints(axes.begin(), axes.end())});
    });
    const std::vector<double> expected = naive_sum(x, axes);
    ASSERT_EQ(y.elements(), static_cast<std::int64_t>(expected.size()));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(y.values<float>()[i], expected[i], 1e-4) << "set " << set << " element " << i;
    }
  }
}

TEST(ReduceKernels, LongSumsArePrecise) {
  // Added up one by one in f32, the sum of 2^24 tenths would be off by a fifth.
  Tensor x(DType::F32, {1 << 12, 1 << 12});
  std::fill(x.values<float>().begin(), x.values<float>().end(), 0.1f);
  const auto y = evaluate_all({x}, [](Inputs in) {
    return std::vector<Value>{reduce_sum(in[0]), reduce_sum(in[0], {.axes = {0}}),
                              reduce_sum(in[0], {.axes = {1}}), reduce_mean(in[0])};
  });
  EXPECT_NEAR(y[0].item(), 0.1f * 16777216.0, 2.0);
  EXPECT_NEAR(y[1].values<float>()[7], 0.1f * 4096.0, 1e-3);
  EXPECT_NEAR(y[2].values<float>()[7], 0.1f * 4096.0, 1e-3);
  EXPECT_NEAR(y[3].item(), 0.1f, 1e-7);
}

TEST(ReduceKernels, TheNumberOfThreadsDoesNotChangeABit) {
  Tensor x(DType::F32, {1003, 517});
  fill(x, {}, 1, 2);
  const auto sums = [&](int threads) {
    const int before = omp_get_max_threads();
    omp_set_num_threads(threads);
    auto results = evaluate_all({x}, [](Inputs in) {
      return std::vector<Value>{reduce_sum(in[0]), reduce_sum(in[0], {.axes = {0}}),
                                reduce_sum(in[0], {.axes = {1}})};
    });
    omp_set_num_threads(before);
    return results;
  };
  const auto one = sums(1);
  for (int threads : {2, 3, 5}) {
    const auto several = sums(threads);
    for (std::size_t i = 0; i < one.size(); ++i) {
      EXPECT_TRUE(one[i].same_bits(several[i])) << threads << " threads, sum " << i;
    }
  }
}

TEST(ReduceKernels, SumAndMeanOfNothingAreZero) {
  const auto y = evaluate_all({Tensor(DType::F32, {0, 3})}, [](Inputs in) {
    return std::vector<Value>{reduce_sum(in[0]), reduce_mean(in[0]),
                              reduce_mean(in[0], {.axes = {0}}), reduce_max(in[0], {.axes = {0}})};
  });
  EXPECT_EQ(y[0].item(), 0);
  EXPECT_EQ(y[1].item(), 0);
  EXPECT_EQ(list<float>(y[2]), (Floats{0, 0, 0}));
  EXPECT_EQ(y[3].values<float>()[0], -std::numeric_limits<float>::infinity());
}

TEST(ReduceKernels, MaxHandlesNegativeNumbersAndKeepsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor y = evaluate({floats({-3, -1, -2, 1, nan, 2}, {2, 3})},
                            [](Inputs in) { return reduce_max(in[0], {.axes = {1}}); });
  EXPECT_EQ(y.values<float>()[0], -1);
  EXPECT_TRUE(std::isnan(y.values<float>()[1]));
}

TEST(ReduceKernels, MaxSplitsTheGradientAmongEquals) {
  const Tensor y = evaluate({floats({2, 5, 5, 1})},
                            [](Inputs in) { return gradients(reduce_max(in[0]), in)[0]; });
  EXPECT_EQ(list<float>(y), (Floats{0, 0.5f, 0.5f, 0}));
}

TEST(ReduceKernels, IntegersAreSummedAsIntegers) {
  const Tensor x = Tensor::of(std::vector<std::int64_t>{1LL << 60, 1, -3}, Shape{3});
  const Tensor y = evaluate({x}, [](Inputs in) { return reduce_sum(in[0]); });
  EXPECT_EQ(y.values<std::int64_t>()[0], (1LL << 60) - 2);
}

TEST(ReduceKernels, ArgMaxIsTheFirstAmongEqualsAndToleratesNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor y = evaluate({floats({1, 7, 7, nan, nan, nan, -2, nan, -1}, {3, 3})},
                            [](Inputs in) { return argmax(in[0]); });
  EXPECT_EQ(y.values<std::int64_t>()[0], 1);
  for (std::int64_t index : y.values<std::int64_t>()) EXPECT_TRUE(index >= 0 && index < 3);
  const Tensor columns =
      evaluate({floats({1, 9, 5, 2}, {2, 2})}, [](Inputs in) { return argmax(in[0], 0); });
  EXPECT_EQ(list<std::int64_t>(columns), (std::vector<std::int64_t>{1, 0}));
}

// As in TensorFlow on CPUs: the index of the first of the largest numbers, or 0 if there is none.
TEST(ReduceKernels, ANaNIsNeverTheLargest) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const Tensor x = floats(
      {nan, 1, 2, 1, nan, 2, 2, 1, nan, nan, nan, nan, nan, -5, nan, nan, infinity, nan}, {6, 3});
  const std::vector<std::int64_t> expected = {2, 2, 0, 0, 1, 1};
  EXPECT_EQ(list<std::int64_t>(evaluate({x}, [](Inputs in) { return argmax(in[0]); })), expected);
  EXPECT_EQ(list<std::int64_t>(evaluate({x},
                                        [](Inputs in) {
                                          return argmax(transpose(in[0], {1, 0}), 0);
                                        })),
            expected);
}

}  // namespace
}  // namespace lockstep
