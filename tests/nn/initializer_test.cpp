#include "lockstep/nn/initializer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "nn/running.h"

namespace lockstep {
namespace {

struct Moments {
  double mean = 0;
  double deviation = 0;
  double low = 0;
  double high = 0;
};

Moments moments(const Initializer& initializer, Shape shape) {
  Tensor tensor(DType::F32, std::move(shape));
  initializer(tensor, 7);
  Moments result{.low = 1e30, .high = -1e30};
  double squares = 0;
  for (double value : tensor.values<float>()) {
    result.mean += value;
    squares += value * value;
    result.low = std::min(result.low, value);
    result.high = std::max(result.high, value);
  }
  const auto count = static_cast<double>(tensor.elements());
  result.mean /= count;
  result.deviation = std::sqrt(squares / count - result.mean * result.mean);
  return result;
}

TEST(Initializers, CountFansLikeKeras) {
  EXPECT_EQ(fans_of({784, 128}).in, 784);
  EXPECT_EQ(fans_of({784, 128}).out, 128);
  EXPECT_EQ(fans_of({3, 5, 16, 32}).in, 15 * 16);
  EXPECT_EQ(fans_of({3, 5, 16, 32}).out, 15 * 32);
  EXPECT_EQ(fans_of({8}).in, 8);
}

TEST(Initializers, HaveTheRightSpread) {
  const double limit = std::sqrt(6.0 / (300 + 500));
  const Moments glorot = moments(GlorotUniform(), {300, 500});
  EXPECT_NEAR(glorot.mean, 0, 1e-3);
  EXPECT_NEAR(glorot.deviation, limit / std::sqrt(3.0), 1e-3 * limit + 1e-4);
  EXPECT_GE(glorot.low, -limit);
  EXPECT_LE(glorot.high, limit);
  EXPECT_LT(glorot.low, -0.99 * limit);

  const Moments he = moments(HeNormal(), {3, 3, 100, 200});
  const double deviation = std::sqrt(2.0 / 900);
  EXPECT_NEAR(he.deviation, deviation, 0.01 * deviation);
  EXPECT_LE(he.high, 2 * deviation / 0.8796 + 1e-6);

  const Moments normal = moments(RandomNormal({.mean = 1, .stddev = 2}), {200000});
  EXPECT_NEAR(normal.mean, 1, 0.02);
  EXPECT_NEAR(normal.deviation, 2, 0.02);
  EXPECT_GT(normal.high, 1 + 2 * 4);

  const Moments truncated = moments(TruncatedNormal({.stddev = 1}), {200000});
  EXPECT_NEAR(truncated.deviation, 0.8796, 0.005);
  EXPECT_LE(std::max(truncated.high, -truncated.low), 2.0);

  EXPECT_NEAR(moments(LecunNormal(), {400, 400}).deviation, 0.05, 5e-4);
  EXPECT_NEAR(moments(GlorotNormal(), {400, 400}).deviation, 0.05, 5e-4);
  EXPECT_NEAR(moments(HeUniform(), {400, 400}).deviation, std::sqrt(2.0) * 0.05, 7e-4);
}

TEST(Initializers, MatchTheNormalDistribution) {
  Tensor tensor(DType::F64, {100000});
  RandomNormal({.stddev = 1})(tensor, 3);
  std::vector<double> values(tensor.values<double>().begin(), tensor.values<double>().end());
  std::ranges::sort(values);
  EXPECT_NEAR(values[50000], 0.0, 0.02);
  EXPECT_NEAR(values[90000], 1.2815516, 0.02);
  EXPECT_NEAR(values[99000], 2.3263479, 0.05);
  EXPECT_NEAR(values[100], -3.0902323, 0.15);
}

TEST(Initializers, DependOnlyOnTheSeed) {
  Tensor a(DType::F32, {33}), b(DType::F32, {33}), c(DType::F32, {33});
  GlorotUniform()(a, 1);
  GlorotUniform()(b, 1);
  GlorotUniform()(c, 2);
  EXPECT_TRUE(a.same_bits(b));
  EXPECT_FALSE(a.same_bits(c));
}

TEST(Initializers, FillConstants) {
  Tensor integers(DType::I64, {2});
  Constant(3)(integers, 0);
  expect_near(integers, {3, 3});
  Tensor floats(DType::F32, {2});
  Ones()(floats, 0);
  expect_near(floats, {1, 1});
  Zeros()(floats, 0);
  expect_near(floats, {0, 0});
  EXPECT_ERROR(GlorotUniform()(integers, 0), UsageError, "not i64");
}

TEST(Initializers, AreFoundByKerasName) {
  Tensor named(DType::F32, {20, 30});
  Tensor made(DType::F32, {20, 30});
  Initializer("he_normal")(named, 5);
  HeNormal()(made, 5);
  EXPECT_TRUE(named.same_bits(made));
  EXPECT_THROW(Initializer("he_norm"), UsageError);
}

}  // namespace
}  // namespace lockstep
