// The gradient noise scale against problems whose noise is known.
#include "lockstep/explain/noise_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace lockstep {
namespace {

// A quadratic loss |w - x|² / 2 of normal samples x: at weights w the gradient of a sample is
// w - x, with the mean G and independent elements of known deviations.
struct Quadratic {
  std::vector<double> gradient;   // G
  std::vector<double> deviation;  // of each element

  double squared_gradient() const {
    double sum = 0;
    for (const double g : gradient) sum += g * g;
    return sum;
  }
  double trace() const {
    double sum = 0;
    for (const double d : deviation) sum += d * d;
    return sum;
  }
  double noise_scale() const { return trace() / squared_gradient(); }

  // One batch in pieces of these sizes.
  NoiseSample sample(std::span<const int> sizes, std::mt19937& random) const {
    std::normal_distribution<double> normal;
    const std::size_t elements = gradient.size();
    std::vector<double> whole(elements, 0.0);
    std::vector<PieceGradient> pieces;
    double batch = 0;
    for (const int size : sizes) {
      PieceGradient piece{.samples = static_cast<double>(size)};
      for (std::size_t e = 0; e < elements && size > 0; ++e) {
        // The mean of `size` independent samples.
        const double mean = gradient[e] + deviation[e] * normal(random) / std::sqrt(size);
        piece.squared_norm += mean * mean;
        whole[e] += size * mean;
      }
      batch += size;
      pieces.push_back(piece);
    }
    double squared = 0;
    for (const double sum : whole) squared += sum * sum / (batch * batch);
    return noise_sample(pieces, squared).value();
  }
};

Quadratic problem() {
  return {.gradient = {0.5, -0.25, 0.1, 0.0, 0.3, 0.2},
          .deviation = {2.0, 1.0, 0.5, 3.0, 1.5, 0.25}};
}

class PiecesOf : public testing::TestWithParam<std::vector<int>> {};

TEST_P(PiecesOf, AnySizesGiveEstimatesThatAreExactInExpectation) {
  const Quadratic quadratic = problem();
  std::mt19937 random(7);
  constexpr int kSeeds = 40000;
  double traces = 0, gradients = 0, squared_traces = 0, squared_gradients = 0;
  for (int i = 0; i < kSeeds; ++i) {
    const NoiseSample sample = quadratic.sample(GetParam(), random);
    EXPECT_GE(sample.trace, 0);
    traces += sample.trace;
    gradients += sample.squared_gradient;
    squared_traces += sample.trace * sample.trace;
    squared_gradients += sample.squared_gradient * sample.squared_gradient;
  }
  const auto expect_mean = [&](double sum, double squares, double truth) {
    const double mean = sum / kSeeds;
    const double error = std::sqrt((squares / kSeeds - mean * mean) / kSeeds);
    EXPECT_NEAR(mean, truth, 4.5 * error);
    EXPECT_LT(error, 0.05 * truth);  // otherwise the line above says little
  };
  expect_mean(traces, squared_traces, quadratic.trace());
  expect_mean(gradients, squared_gradients, quadratic.squared_gradient());
}

INSTANTIATE_TEST_SUITE_P(NoiseScale, PiecesOf,
                         testing::Values(std::vector{16, 16}, std::vector{8, 8, 8, 8},
                                         std::vector{31, 1}, std::vector{20, 10, 5, 1},
                                         std::vector{12, 0, 19, 3}));

TEST(NoiseScale, EqualPiecesGiveTheEstimatorsOfThePaper) {
  const std::vector<PieceGradient> pieces = {{8, 3.0}, {8, 2.0}, {8, 4.0}, {8, 3.5}};
  const double whole = 2.5;
  const double small = (3.0 + 2.0 + 4.0 + 3.5) / 4;
  const NoiseSample sample = noise_sample(pieces, whole).value();
  EXPECT_NEAR(sample.squared_gradient, (32 * whole - 8 * small) / (32 - 8), 1e-12);
  EXPECT_NEAR(sample.trace, (small - whole) / (1.0 / 8 - 1.0 / 32), 1e-12);
}

TEST(NoiseScale, OnePieceOrAnOverflowTellsNothing) {
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(noise_sample(std::vector<PieceGradient>{{8, 3.0}}, 3.0));
  EXPECT_FALSE(noise_sample(std::vector<PieceGradient>{{8, 3.0}, {0, 0.0}}, 3.0));
  EXPECT_FALSE(noise_sample(std::vector<PieceGradient>{{8, 3.0}, {8, infinite}}, infinite));
  EXPECT_FALSE(noise_sample(std::vector<PieceGradient>{{8, 3.0}, {8, std::nan("")}}, 3.0));
  EXPECT_TRUE(noise_sample(std::vector<PieceGradient>{{8, 3.0}, {8, 2.0}}, 2.0));
}

// What is stated with 95% certainty is true 95 times of a hundred, also after few steps.
TEST(NoiseScale, TheTruthIsWithinTheStatedLimits) {
  const Quadratic quadratic = problem();
  std::mt19937 random(11);
  for (const int steps : {10, 50, 400}) {
    constexpr int kRuns = 1000;
    int within = 0;
    for (int run = 0; run < kRuns; ++run) {
      NoiseScaleAverage average;
      const std::vector<int> sizes = {9, 7};
      for (int i = 0; i < steps; ++i) average.add(quadratic.sample(sizes, random));
      const NoiseScale found = average.estimate().value();
      EXPECT_EQ(found.samples, steps);
      EXPECT_LE(found.low, found.value);
      EXPECT_LE(found.value, found.high);
      if (found.low <= quadratic.noise_scale() && quadratic.noise_scale() <= found.high) ++within;
    }
    EXPECT_GE(within, 920) << steps;
    EXPECT_LE(within, 990) << steps;
  }
}

TEST(NoiseScale, LimitsNarrowWithTheNumberOfStepsUntilTheHorizon) {
  const Quadratic quadratic = problem();
  std::mt19937 random(3);
  const std::vector<int> sizes = {32, 32, 32, 32};
  NoiseScaleAverage average(400);
  std::vector<double> widths;
  for (int i = 1; i <= 6400; ++i) {
    average.add(quadratic.sample(sizes, random));
    if (i == 25 || i == 100 || i == 400 || i == 6400) {
      const NoiseScale found = average.estimate().value();
      widths.push_back(found.high - found.low);
    }
  }
  EXPECT_GT(widths[0], 1.3 * widths[1]);
  EXPECT_GT(widths[1], 1.5 * widths[2]);
  EXPECT_GT(widths[3], 0.5 * widths[2]);  // the memory is limited
}

TEST(NoiseScale, FollowsAGradientThatShrinks) {
  Quadratic quadratic = problem();
  std::mt19937 random(5);
  const std::vector<int> sizes = {64, 64};
  NoiseScaleAverage average(100);
  for (int i = 0; i < 300; ++i) average.add(quadratic.sample(sizes, random));
  const double before = average.estimate()->value;
  for (double& g : quadratic.gradient) g /= 2;
  for (int i = 0; i < 1000; ++i) average.add(quadratic.sample(sizes, random));
  EXPECT_NEAR(average.estimate()->value / before, 4.0, 1.5);
}

TEST(NoiseScale, WithoutAGradientThereIsNoUpperLimit) {
  Quadratic quadratic = problem();
  for (double& g : quadratic.gradient) g = 0;
  std::mt19937 random(5);
  NoiseScaleAverage average;
  const std::vector<int> sizes = {16, 16};
  EXPECT_FALSE(average.estimate());
  for (int i = 0; i < 200; ++i) average.add(quadratic.sample(sizes, random));
  const NoiseScale found = average.estimate().value();
  EXPECT_TRUE(std::isinf(found.high));
  EXPECT_GT(found.low, 50);  // it is certainly not small
}

TEST(NoiseScale, WithoutNoiseItIsZero) {
  NoiseScaleAverage average;
  for (int i = 0; i < 20; ++i) average.add({.squared_gradient = 2.0, .trace = 0.0});
  const NoiseScale found = average.estimate().value();
  EXPECT_EQ(found.value, 0);
  EXPECT_EQ(found.high, 0);
}

TEST(TimeToLoss, FollowsTheTradeOffOfThePaper) {
  EXPECT_DOUBLE_EQ(steps_factor(1000, 1000), 2);
  EXPECT_DOUBLE_EQ(examples_factor(1000, 1000), 2);
  // (S / S_min - 1) (E / E_min - 1) = 1 for every batch.
  for (const double batch : {1.0, 64.0, 5000.0}) {
    EXPECT_NEAR((steps_factor(777, batch) - 1) * (examples_factor(777, batch) - 1), 1, 1e-9);
  }
}

TEST(TimeToLoss, AFasterStepOnALargerBatchReachesTheLossLessMuchSooner) {
  const NoiseScale noise{.value = 256, .low = 200, .high = 320, .samples = 100};
  const std::vector<ScalePoint> points = {
      {1, 64, 0.1}, {2, 128, 0.1}, {4, 256, 0.1}, {8, 512, 0.1}, {16, 1024, 0.1}};
  const std::vector<TimeToLoss> times = time_to_loss(noise, points, RateRule::Sgd);
  EXPECT_DOUBLE_EQ(times[2].faster, 4);
  EXPECT_DOUBLE_EQ(times[2].sooner, (1 + 256.0 / 64) / (1 + 256.0 / 256));  // 2.5
  EXPECT_DOUBLE_EQ(times[2].steps, 1 / 2.5);
  EXPECT_LT(times[2].sooner_low, times[2].sooner);
  EXPECT_GT(times[2].sooner_high, times[2].sooner);
  EXPECT_DOUBLE_EQ(times[2].rate_factor, 2.5);
  EXPECT_DOUBLE_EQ(times[0].sooner, 1);
  // 4 devices: 2.5 times sooner, at most twice the device time; 8: 5 / 1.5 = 3.3 < 4.
  EXPECT_EQ(largest_that_pays(times)->devices, 4);
}

TEST(TimeToLoss, WhatStepsLoseToCommunicationCounts) {
  const NoiseScale noise{.value = 1e6, .low = 5e5, .high = 2e6, .samples = 100};
  const std::vector<ScalePoint> points = {{1, 64, 0.1}, {2, 128, 0.15}, {4, 256, 0.5}};
  const std::vector<TimeToLoss> times = time_to_loss(noise, points, RateRule::Adaptive);
  EXPECT_NEAR(times[1].sooner, 2 / 1.5, 1e-3);
  EXPECT_NEAR(times[1].rate_factor, std::sqrt(2.0), 1e-3);
  EXPECT_LT(times[2].sooner, 1);
  EXPECT_EQ(largest_that_pays(times)->devices, 2);
}

TEST(TimeToLoss, WithAnInfiniteNoiseScaleLargerBatchesAlwaysPay) {
  const double infinite = std::numeric_limits<double>::infinity();
  const NoiseScale noise{.value = infinite, .low = 100, .high = infinite, .samples = 100};
  const std::vector<ScalePoint> points = {{1, 64, 0.1}, {4, 256, 0.1}};
  const std::vector<TimeToLoss> times = time_to_loss(noise, points, RateRule::Sgd);
  EXPECT_DOUBLE_EQ(times[1].sooner, 4);
  EXPECT_DOUBLE_EQ(times[1].rate_factor, 4);
  EXPECT_LT(times[1].sooner_low, 4);
}

TEST(LearningRate, GrowsWithTheBatchUntilTheNoiseScale) {
  EXPECT_NEAR(rate_factor(1e9, 32, 64, RateRule::Sgd), 2, 1e-6);
  EXPECT_NEAR(rate_factor(1e9, 32, 64, RateRule::Adaptive), std::sqrt(2.0), 1e-6);
  EXPECT_NEAR(rate_factor(1, 1e6, 1e9, RateRule::Sgd), 1, 1e-5);
  EXPECT_EQ(rate_rule_of("sgd"), RateRule::Sgd);
  EXPECT_EQ(rate_rule_of("adamw"), RateRule::Adaptive);
}

}  // namespace
}  // namespace lockstep
