#include "lockstep/explain/noise_scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

constexpr std::int64_t kFewest = 5;   // samples before anything is said
constexpr double kNormal = 1.959964;  // a normal number is within ± this with 95% probability

// The same for Student's distribution with so many degrees of freedom, at least 3: Fisher's
// expansion around the normal one, which is within 1% there.
double student(double freedom) {
  const double z = kNormal;
  const double z3 = z * z * z;
  const double z5 = z3 * z * z;
  const double z7 = z5 * z * z;
  const double f = 1 / freedom;
  return z + f * ((z3 + z) / 4 + f * ((5 * z5 + 16 * z3 + 3 * z) / 96 +
                                      f * (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / 384));
}

struct Limits {
  double low = 0;
  double high = std::numeric_limits<double>::infinity();
};

// All r >= 0 for which a r² - 2 b r + c <= 0 holds: Fieller's theorem says that the ratio is one of
// them. With a <= 0 the denominator may be zero, and nothing limits the ratio from above.
Limits fieller(double a, double b, double c) {
  const double inside = b * b - a * c;
  if (a > 0) {
    const double half = std::sqrt(std::max(inside, 0.0));
    return {std::max((b - half) / a, 0.0), std::max((b + half) / a, 0.0)};
  }
  if (c <= 0) return {};
  if (a == 0) return {b > 0 ? c / (2 * b) : std::numeric_limits<double>::infinity()};
  return {std::max((b - std::sqrt(inside)) / a, 0.0)};
}

}  // namespace

std::optional<NoiseSample> noise_sample(std::span<const PieceGradient> pieces,
                                        double squared_norm) {
  double batch = 0;
  double weighted = 0;
  int count = 0;
  for (const PieceGradient& piece : pieces) {
    if (!(piece.samples > 0)) continue;
    ++count;
    batch += piece.samples;
    weighted += piece.samples * piece.squared_norm;
  }
  if (count < 2 || !std::isfinite(weighted) || !std::isfinite(squared_norm)) return std::nullopt;
  const double trace = std::max(weighted - batch * squared_norm, 0.0) / (count - 1);
  return NoiseSample{.squared_gradient = squared_norm - trace / batch, .trace = trace};
}

void NoiseScaleAverage::add(const NoiseSample& sample) {
  ++samples_;
  const double weight = std::max(1.0 / static_cast<double>(samples_), 1.0 / horizon_);
  const double trace = sample.trace - trace_;
  const double gradient = sample.squared_gradient - gradient_;
  trace_ += weight * trace;
  gradient_ += weight * gradient;
  const auto mix = [&](double& sum, double product) {
    sum = (1 - weight) * (sum + weight * product);
  };
  mix(trace_trace_, trace * trace);
  mix(trace_gradient_, trace * gradient);
  mix(gradient_gradient_, gradient * gradient);
  squared_weights_ = (1 - weight) * (1 - weight) * squared_weights_ + weight * weight;
}

std::optional<NoiseScale> NoiseScaleAverage::estimate() const {
  if (samples_ < kFewest) return std::nullopt;
  // The variances of the means: those of single samples, times the sum of the squared weights.
  const double of_mean = squared_weights_ / (1 - squared_weights_);
  const double t = student(1 / squared_weights_ - 1);
  const double q = t * t * of_mean;
  const Limits limits =
      fieller(gradient_ * gradient_ - q * gradient_gradient_,
              trace_ * gradient_ - q * trace_gradient_, trace_ * trace_ - q * trace_trace_);
  const double value = gradient_ > 0 ? trace_ / gradient_ : std::numeric_limits<double>::infinity();
  return NoiseScale{.value = value,
                    .low = std::min(limits.low, value),
                    .high = std::max(limits.high, value),
                    .squared_gradient = gradient_,
                    .trace = trace_,
                    .samples = samples_};
}

double steps_factor(double noise_scale, double batch) {
  require(batch > 0, "[noise scale] a batch has {} samples; give a positive number", batch);
  return 1 + noise_scale / batch;
}

double examples_factor(double noise_scale, double batch) {
  return 1 + batch / noise_scale;
}

RateRule rate_rule_of(std::string_view optimizer) {
  return optimizer == "sgd" || optimizer == "lars" ? RateRule::Sgd : RateRule::Adaptive;
}

double rate_factor(double noise_scale, double from, double to, RateRule rule) {
  // As the noise scale grows, the quotient of the two approaches that of the batches.
  const double factor = std::isinf(noise_scale)
                            ? to / from
                            : steps_factor(noise_scale, from) / steps_factor(noise_scale, to);
  return rule == RateRule::Sgd ? factor : std::sqrt(factor);
}

std::vector<TimeToLoss> time_to_loss(const NoiseScale& noise, std::span<const ScalePoint> points,
                                     RateRule rule) {
  std::vector<TimeToLoss> all;
  for (const ScalePoint& point : points) {
    require(point.devices > 0 && point.batch > 0 && point.step_seconds > 0,
            "[noise scale] {} devices with a batch of {} and steps of {} s: all must be positive",
            point.devices, point.batch, point.step_seconds);
    const ScalePoint& first = points.front();
    const double step = first.step_seconds / point.step_seconds;
    // Steps that are needed fewer are what the learning rate of SGD grows by.
    const auto fewer = [&](double scale) {
      return rate_factor(scale, first.batch, point.batch, RateRule::Sgd);
    };
    const auto [least, most] = std::minmax({step * fewer(noise.low), step * fewer(noise.high)});
    all.push_back({.at = point,
                   .faster = step * point.batch / first.batch,
                   .steps = 1 / fewer(noise.value),
                   .sooner = step * fewer(noise.value),
                   .sooner_low = least,
                   .sooner_high = most,
                   .rate_factor = rate_factor(noise.value, first.batch, point.batch, rule)});
  }
  return all;
}

std::optional<ScalePoint> largest_that_pays(std::span<const TimeToLoss> points) {
  std::optional<ScalePoint> largest;
  for (const TimeToLoss& point : points) {
    const double devices = static_cast<double>(point.at.devices) / points.front().at.devices;
    if (2 * point.sooner < devices) continue;
    if (!largest || point.at.devices > largest->devices) largest = point.at;
  }
  return largest;
}

std::string sentence_about(const NoiseScale& noise, double batch, RateRule rule) {
  const auto limit = [](double samples) {
    return std::isinf(samples) ? std::string("any number") : fmt::format("{:.0f}", samples);
  };
  if (std::isinf(noise.value)) {
    return fmt::format(
        "gradient noise scale: more than {:.0f} samples (95% certain); the gradient is lost in the "
        "noise of batches of {:.0f}: larger ones pay",
        noise.low, batch);
  }
  std::string text = fmt::format("gradient noise scale: {:.0f} samples ({} to {}): ", noise.value,
                                 limit(noise.low), limit(noise.high));
  const double rate = rate_factor(noise.value, batch, 2 * batch, rule);
  const double fewer = rate_factor(noise.value, batch, 2 * batch, RateRule::Sgd);
  text += batch <= noise.value
              ? fmt::format(
                    "batches of {:.0f} may grow; twice as large, the loss is reached in "
                    "{:.2f} times fewer steps, with {:.2f} times the learning rate; up to "
                    "{:.0f} samples pay",
                    batch, fewer, rate, noise.value)
              : fmt::format(
                    "batches of {:.0f} are larger than pays; half as large, the loss is "
                    "reached with {:.2f} times fewer samples, with {:.2f} times the "
                    "learning rate",
                    batch,
                    examples_factor(noise.value, batch) / examples_factor(noise.value, batch / 2),
                    rate_factor(noise.value, batch, batch / 2, rule));
  return text;
}

}  // namespace lockstep
