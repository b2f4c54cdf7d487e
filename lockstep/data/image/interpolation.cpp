#include "lockstep/data/image/interpolation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

namespace {

float triangle(float x) {
  return std::max(0.0f, 1.0f - x);
}

float keys_cubic(float x) {
  if (x >= 2) return 0;
  if (x >= 1) return ((-0.5f * x + 2.5f) * x - 4) * x + 2;
  return (1.5f * x - 2.5f) * x * x + 1;
}

float mitchell_cubic(float x) {
  if (x >= 2) return 0;
  if (x >= 1) return (((-7.0f / 18) * x + 2) * x - 10.0f / 3) * x + 16.0f / 9;
  return ((7.0f / 6) * x - 2) * x * x + 8.0f / 9;
}

template <int kRadius>
float lanczos(float x) {
  if (x > kRadius) return 0;
  if (x <= 1e-3f) return 1;
  const float angle = std::numbers::pi_v<float> * x;
  return kRadius * std::sin(angle) * std::sin(angle / kRadius) / (angle * angle);
}

constexpr float kGaussianRadius = 1.5f;

float gaussian(float x) {
  if (x >= kGaussianRadius) return 0;
  const float deviation = kGaussianRadius / 3;
  return std::exp(-x * x / (2 * deviation * deviation));
}

// Scales the weights of one output to a sum of one, which makes up for those beyond the edges.
void normalize(float* weights, int count) {
  float sum = 0;
  for (int k = 0; k < count; ++k) sum += weights[k];
  if (std::abs(sum) < 1000 * std::numeric_limits<float>::min()) return;
  const float factor = 1 / sum;
  for (int k = 0; k < count; ++k) weights[k] *= factor;
}

// The source pixels that the weights of one output apply to.
struct Output {
  int first = 0;
  int count = 0;
};

// Samples `filter` around `centre`, stretched by `stretch`.
template <class Filter>
Output sample(const AxisSource& source, double centre, float radius, float stretch, Filter filter,
              float* weights) {
  const double reach = static_cast<double>(radius) * stretch;
  const int begin =
      std::clamp(static_cast<int>(std::ceil(centre - reach - 0.5)), source.first, source.last - 1);
  const int end =
      std::clamp(static_cast<int>(std::floor(centre + reach - 0.5)), source.first, source.last - 1);
  const float factor = 1 / stretch;
  const auto offset = static_cast<float>(begin + 0.5 - centre);
  for (int k = 0; k <= end - begin; ++k) {
    weights[k] = filter(std::abs((offset + static_cast<float>(k)) * factor));
  }
  normalize(weights, end - begin + 1);
  return {.first = begin, .count = end - begin + 1};
}

Output nearest(const AxisSource& source, double centre, float* weights) {
  weights[0] = 1;
  const int index = static_cast<int>(std::floor(centre));
  return {.first = std::clamp(index, source.first, source.last - 1), .count = 1};
}

Output bilinear(const AxisSource& source, double centre, float* weights) {
  const double position = centre - 0.5;
  const double lower = std::floor(position);
  const int first = static_cast<int>(lower);
  if (first < source.first || first + 1 >= source.last) {
    weights[0] = 1;
    return {.first = std::clamp(first, source.first, source.last - 1), .count = 1};
  }
  weights[1] = static_cast<float>(position - lower);
  weights[0] = 1 - weights[1];
  return {.first = first, .count = 2};
}

// TensorFlow takes these weights from a table with 1024 steps between two pixels.
Output bicubic(const AxisSource& source, double centre, float* weights) {
  constexpr float kSteps = 1024;
  const double position = centre - 0.5;
  const double lower = std::floor(position);
  const float fraction = std::nearbyint(static_cast<float>(position - lower) * kSteps) / kSteps;
  const int begin = std::max(static_cast<int>(lower) - 1, source.first);
  const int end = std::min(static_cast<int>(lower) + 3, source.last);
  for (int pixel = begin; pixel < end; ++pixel) {
    weights[pixel - begin] =
        keys_cubic(std::abs(static_cast<float>(pixel - static_cast<int>(lower)) - fraction));
  }
  normalize(weights, end - begin);
  return {.first = begin, .count = end - begin};
}

// The pixels that [begin, end) overlaps, each weighted by the length of the overlap.
Output area(const AxisSource& source, double begin, double end, float* weights) {
  const int first = std::clamp(static_cast<int>(std::floor(begin)), source.first, source.last - 1);
  const int last = std::clamp(static_cast<int>(std::ceil(end)), first + 1, source.last);
  for (int pixel = first; pixel < last; ++pixel) {
    const double covered = std::min(end, pixel + 1.0) - std::max(begin, static_cast<double>(pixel));
    weights[pixel - first] = static_cast<float>(std::max(covered, 0.0));
  }
  normalize(weights, last - first);
  return {.first = first, .count = last - first};
}

float radius_of(Interpolation interpolation) {
  switch (interpolation) {
    case Interpolation::Nearest:
    case Interpolation::Area:
      return 0.5f;
    case Interpolation::Bilinear:
      return 1;
    case Interpolation::Bicubic:
    case Interpolation::MitchellCubic:
      return 2;
    case Interpolation::Lanczos3:
      return 3;
    case Interpolation::Lanczos5:
      return 5;
    case Interpolation::Gaussian:
      return kGaussianRadius;
  }
  fail<InternalError>("[resize] unknown interpolation {}", static_cast<int>(interpolation));
}

// Calls use(f), where f(output, weights) writes the weights of one output and returns their pixels.
template <class Use>
void with_rule(const AxisSource& source, int outputs, const AxisOptions& options, float stretch,
               Use use) {
  const double scale = source.extent / outputs;
  const auto centre = [&source, scale](int i) { return source.begin + (i + 0.5) * scale; };
  const float radius = radius_of(options.interpolation);
  const auto filtered = [&](auto filter) {
    use([&, filter](int i, float* weights) {
      return sample(source, centre(i), radius, stretch, filter, weights);
    });
  };
  switch (options.interpolation) {
    case Interpolation::Nearest: {
      // In single precision, which decides ties as TensorFlow does.
      const auto single = static_cast<float>(scale);
      return use([&source, single](int i, float* weights) {
        const float along = (static_cast<float>(i) + 0.5f) * single;
        return nearest(source, source.begin + along, weights);
      });
    }
    case Interpolation::Area:
      return use([&](int i, float* weights) {
        return area(source, source.begin + i * scale, source.begin + (i + 1) * scale, weights);
      });
    case Interpolation::Bilinear:
      if (stretch > 1) return filtered([](float x) { return triangle(x); });
      return use([&](int i, float* weights) { return bilinear(source, centre(i), weights); });
    case Interpolation::Bicubic:
      if (options.antialias) return filtered([](float x) { return keys_cubic(x); });
      return use([&](int i, float* weights) { return bicubic(source, centre(i), weights); });
    case Interpolation::MitchellCubic:
      return filtered([](float x) { return mitchell_cubic(x); });
    case Interpolation::Lanczos3:
      return filtered([](float x) { return lanczos<3>(x); });
    case Interpolation::Lanczos5:
      return filtered([](float x) { return lanczos<5>(x); });
    case Interpolation::Gaussian:
      return filtered([](float x) { return gaussian(x); });
  }
}

constexpr std::array<std::pair<std::string_view, Interpolation>, 8> kNames = {{
    {"nearest", Interpolation::Nearest},
    {"bilinear", Interpolation::Bilinear},
    {"bicubic", Interpolation::Bicubic},
    {"area", Interpolation::Area},
    {"lanczos3", Interpolation::Lanczos3},
    {"lanczos5", Interpolation::Lanczos5},
    {"gaussian", Interpolation::Gaussian},
    {"mitchellcubic", Interpolation::MitchellCubic},
}};

}  // namespace

Interpolation interpolation_named(std::string_view name) {
  for (const auto& [spelling, interpolation] : kNames) {
    if (spelling == name) return interpolation;
  }
  fail<UsageError>(
      "[resize] unknown interpolation '{}'; it can be nearest, bilinear, bicubic, area, lanczos3, "
      "lanczos5, gaussian or mitchellcubic",
      name);
}

void AxisWeights::fill(const AxisSource& source, int outputs, const AxisOptions& options) {
  require(outputs > 0 && source.last > source.first && source.extent > 0,
          "[resize] {} pixels ({} of them readable) cannot become {}", source.extent,
          source.last - source.first, outputs);
  const double scale = source.extent / outputs;
  const bool stretches = options.antialias || options.interpolation == Interpolation::Area;
  const float stretch = stretches ? static_cast<float>(std::max(scale, 1.0)) : 1.0f;
  const int most = 2 * static_cast<int>(std::ceil(radius_of(options.interpolation) * stretch)) + 2;
  stride_ = static_cast<std::size_t>(std::min(most, std::max(4, source.last - source.first)));
  first_.resize(static_cast<std::size_t>(outputs));
  weights_.assign(static_cast<std::size_t>(outputs) * stride_, 0.0f);
  taps_ = 1;
  with_rule(source, outputs, options, stretch, [&](auto rule) {
    for (int i = 0; i < outputs; ++i) {
      const auto at = static_cast<std::size_t>(options.mirrored ? outputs - 1 - i : i);
      const Output output = rule(i, weights_.data() + at * stride_);
      first_[at] = output.first;
      taps_ = std::max(taps_, output.count);
    }
  });
  for (std::size_t i = 0; i < first_.size(); ++i) {
    const int excess = first_[i] + taps_ - source.last;
    if (excess <= 0) continue;
    float* weights = weights_.data() + i * stride_;
    std::rotate(weights, weights + taps_ - excess, weights + taps_);
    first_[i] -= excess;
  }
}

}  // namespace lockstep
