// The gradient noise scale (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training"):
// how large a batch is before its gradient is hardly noisy any more, and what follows from it.
//
// The gradients of samples have the mean G and the covariance Sigma. The mean gradient g of a batch
// of b samples then has
//
//   E|g|² = |G|² + tr(Sigma) / b,
//
// and B_noise = tr(Sigma) / |G|². Let a batch of B samples consist of n pieces of b_i samples with
// the mean gradients g_i, so that g = sum b_i g_i / B. From
//
//   E sum b_i |g_i|² = B |G|² + n tr(Sigma)   and   E B |g|² = B |G|² + tr(Sigma)
//
// follow unbiased estimators for pieces of any sizes:
//
//   tr(Sigma) ~ (sum b_i |g_i|² - B |g|²) / (n - 1) = sum b_i |g_i - g|² / (n - 1)
//   |G|²      ~ |g|² - tr(Sigma) / B.
//
// For pieces of one size they are those of the paper. The first never is negative and does not
// depend on G, however large; the second may be negative. Each is noisy, so both are averaged over
// steps, and the noise scale is the ratio of the averages.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct PieceGradient {
  double samples = 0;
  double squared_norm = 0;  // of the mean gradient of its samples
};

// What one step tells.
struct NoiseSample {
  double squared_gradient = 0;  // estimates |G|²; may be negative
  double trace = 0;             // estimates tr(Sigma)
};
// From the pieces of a batch and the squared norm of the mean gradient of the whole batch. Empty
// pieces do not count. Nothing if there are fewer than two pieces, or if a number is not finite
// (gradients that overflowed).
std::optional<NoiseSample> noise_sample(std::span<const PieceGradient> pieces, double squared_norm);

// B_noise in samples, with the limits between which it is with 95% certainty. Infinite where the
// gradient cannot be told from zero.
struct NoiseScale {
  double value = 0;
  double low = 0;
  double high = 0;
  double squared_gradient = 0;
  double trace = 0;
  std::int64_t samples = 0;  // sampled steps, of which the last ones count most
};

// The averages. Of the first `horizon` steps all count alike; from then on older ones count less
// and less (exponentially, with this time constant), as the noise scale grows during training.
class NoiseScaleAverage {
 public:
  explicit NoiseScaleAverage(double horizon = 500) : horizon_(horizon) {}

  void add(const NoiseSample& sample);
  std::int64_t samples() const { return samples_; }
  // Nothing before there are five samples. The limits are Fieller's, of a ratio of two means with
  // correlated errors: they stay true where the denominator is uncertain, and are then wide.
  std::optional<NoiseScale> estimate() const;

 private:
  double horizon_;
  std::int64_t samples_ = 0;
  double trace_ = 0;  // means
  double gradient_ = 0;
  double trace_trace_ = 0;  // weighted squares of differences from the means
  double trace_gradient_ = 0;
  double gradient_gradient_ = 0;
  double squared_weights_ = 0;  // their sum; the sum of the weights is 1
};

// How many times as many steps a loss takes with batches of this size as with huge ones, and how
// many times as many samples as with tiny ones: 1 + B_noise / B and 1 + B / B_noise. Of the optimal
// learning rate in each case.
double steps_factor(double noise_scale, double batch);
double examples_factor(double noise_scale, double batch);

// By what to multiply a learning rate that is right for batches of size `from` for size `to`. A
// rule that divides by the size of gradients (Adam and its kin) takes the square root of what SGD
// takes, which is (1 + B_noise / from) / (1 + B_noise / to).
enum class RateRule { Sgd, Adaptive };
RateRule rate_rule_of(std::string_view optimizer);
double rate_factor(double noise_scale, double from, double to, RateRule rule);

// A job on so many devices: its global batch and how long its step takes, measured or simulated.
struct ScalePoint {
  int devices = 1;
  double batch = 0;
  double step_seconds = 0;
};
// How much sooner it reaches a loss than the first of several.
struct TimeToLoss {
  ScalePoint at;
  double faster = 1;  // samples per second
  double steps = 1;   // how many times as many steps it takes
  double sooner = 1;
  double sooner_low = 1;  // for the limits of the noise scale
  double sooner_high = 1;
  double rate_factor = 1;  // of the learning rate
};
std::vector<TimeToLoss> time_to_loss(const NoiseScale& noise, std::span<const ScalePoint> points,
                                     RateRule rule);
// The largest of them that still pays: reaching the loss takes at most twice the device-seconds of
// the first. Where steps take the same time on any number of devices, its batch is about B_noise.
std::optional<ScalePoint> largest_that_pays(std::span<const TimeToLoss> points);

// What it means for training with batches of this size, in a sentence.
std::string sentence_about(const NoiseScale& noise, double batch, RateRule rule);

}  // namespace lockstep
