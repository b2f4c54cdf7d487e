#include "lockstep/nn/initializer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "lockstep/base/error.h"
#include "lockstep/base/random.h"

namespace lockstep {
namespace {

// Sets every element to f(u), u uniform in (0, 1). Element i reads word i % 4 of Philox block i / 4
// of the seed's stream, so blocks can be drawn in any order.
template <class F>
void fill_from_uniform(Tensor& target, std::uint64_t seed, F f) {
  const PhiloxKey key = make_key(seed, 0);
  const auto fill = [&](auto values) {
    using T = typename decltype(values)::value_type;
    const auto count = static_cast<std::int64_t>(values.size());
#pragma omp parallel for schedule(static) if (count > 65536)
    for (std::int64_t block = 0; block < (count + 3) / 4; ++block) {
      const PhiloxBlock words = philox(
          key, {static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), 0, 0});
      const std::int64_t end = std::min<std::int64_t>(4, count - 4 * block);
      for (std::int64_t i = 0; i < end; ++i) {
        const double u = (words[static_cast<std::size_t>(i)] + 0.5) * 0x1p-32;
        values[static_cast<std::size_t>(4 * block + i)] = static_cast<T>(f(u));
      }
    }
  };
  if (target.dtype() == DType::F64) {
    fill(target.values<double>());
  } else {
    require(target.dtype() == DType::F32, "[initializer] fills f32 and f64 tensors, not {}",
            name_of(target.dtype()));
    fill(target.values<float>());
  }
}

template <std::size_t N>
double polynomial(const std::array<double, N>& coefficients, double x) {
  double sum = 0;
  for (std::size_t i = N; i-- > 0;) sum = sum * x + coefficients[i];
  return sum;
}

// The normal quantile to about 7 digits: a rational function in the middle 85%, two more in the
// tails (Wichura, algorithm AS 241, PPND7, Applied Statistics 37, 1988).
double normal_quantile(double u) {
  constexpr std::array<double, 4> a = {3.3871327179, 50.434271938, 159.29113202, 59.109374720};
  constexpr std::array<double, 4> b = {1.0, 17.895169469, 78.757757664, 67.187563600};
  constexpr std::array<double, 4> c = {1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103};
  constexpr std::array<double, 3> d = {1.0, 0.73700164250, 0.12021132975};
  constexpr std::array<double, 4> e = {6.6579051150, 3.0812263860, 0.42868294337, 0.017337203997};
  constexpr std::array<double, 3> f = {1.0, 0.24197894225, 0.012258202635};
  const double q = u - 0.5;
  if (std::abs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(a, r) / polynomial(b, r);
  }
  const double r = std::sqrt(-std::log(q < 0 ? u : 1 - u));
  const double tail = r <= 5 ? polynomial(c, r - 1.6) / polynomial(d, r - 1.6)
                             : polynomial(e, r - 5.0) / polynomial(f, r - 5.0);
  return q < 0 ? -tail : tail;
}

// The quantile of a normal distribution truncated at two standard deviations.
double truncated_quantile(double u) {
  static const double below = 0.5 * std::erfc(std::numbers::sqrt2);  // P(x < -2)
  return std::clamp(normal_quantile(below + u * (1 - 2 * below)), -2.0, 2.0);
}

// The standard deviation of a standard normal distribution truncated at two standard deviations.
constexpr double kTruncatedDeviation = 0.87962566103423978;

}  // namespace

Fans fans_of(const Shape& kernel) {
  if (kernel.rank() == 0) return {};
  if (kernel.rank() == 1) {
    const auto extent = static_cast<double>(kernel[0]);
    return {extent, extent};
  }
  double window = 1;
  for (int axis = 0; axis < kernel.rank() - 2; ++axis) window *= static_cast<double>(kernel[axis]);
  return {window * static_cast<double>(kernel[-2]), window * static_cast<double>(kernel[-1])};
}

Initializer VarianceScaling(VarianceScalingOptions options) {
  require(options.scale > 0, "[variance_scaling] the scale must be above 0, got {}", options.scale);
  return [options](Tensor& target, std::uint64_t seed) {
    const Fans fans = fans_of(target.shape());
    const double fan = options.mode == FanMode::In    ? fans.in
                       : options.mode == FanMode::Out ? fans.out
                                                      : (fans.in + fans.out) / 2;
    const double variance = options.scale / std::max(1.0, fan);
    switch (options.distribution) {
      case Distribution::Uniform: {
        const double limit = std::sqrt(3 * variance);
        return RandomUniform({.minval = -limit, .maxval = limit})(target, seed);
      }
      case Distribution::Normal:
        return RandomNormal({.stddev = std::sqrt(variance)})(target, seed);
      case Distribution::TruncatedNormal:
        return TruncatedNormal({.stddev = std::sqrt(variance) / kTruncatedDeviation})(target, seed);
    }
  };
}

Initializer GlorotUniform() {
  return VarianceScaling({.mode = FanMode::Average, .distribution = Distribution::Uniform});
}

Initializer GlorotNormal() {
  return VarianceScaling({.mode = FanMode::Average});
}

Initializer HeUniform() {
  return VarianceScaling({.scale = 2.0, .distribution = Distribution::Uniform});
}

Initializer HeNormal() {
  return VarianceScaling({.scale = 2.0});
}

Initializer LecunUniform() {
  return VarianceScaling({.distribution = Distribution::Uniform});
}

Initializer LecunNormal() {
  return VarianceScaling();
}

Initializer RandomNormal(RandomNormalOptions options) {
  return [options](Tensor& target, std::uint64_t seed) {
    fill_from_uniform(target, seed,
                      [&](double u) { return options.mean + options.stddev * normal_quantile(u); });
  };
}

Initializer TruncatedNormal(RandomNormalOptions options) {
  return [options](Tensor& target, std::uint64_t seed) {
    fill_from_uniform(target, seed, [&](double u) {
      return options.mean + options.stddev * truncated_quantile(u);
    });
  };
}

Initializer RandomUniform(RandomUniformOptions options) {
  require(options.minval <= options.maxval, "[random_uniform] minval {} is above maxval {}",
          options.minval, options.maxval);
  return [options](Tensor& target, std::uint64_t seed) {
    fill_from_uniform(target, seed, [&](double u) {
      return options.minval + (options.maxval - options.minval) * u;
    });
  };
}

Initializer Zeros() {
  return Constant(0);
}

Initializer Ones() {
  return Constant(1);
}

Initializer Constant(double value) {
  return [value](Tensor& target, std::uint64_t) {
    dispatch(target.dtype(), [&](auto zero) {
      using T = decltype(zero);
      std::ranges::fill(target.values<T>(), static_cast<T>(value));
    });
  };
}

Initializer::Initializer(const std::string& name) {
  static const std::vector<std::pair<std::string, Initializer>> known = {
      {"zeros", Zeros()},
      {"ones", Ones()},
      {"glorot_uniform", GlorotUniform()},
      {"glorot_normal", GlorotNormal()},
      {"he_uniform", HeUniform()},
      {"he_normal", HeNormal()},
      {"lecun_uniform", LecunUniform()},
      {"lecun_normal", LecunNormal()},
      {"random_uniform", RandomUniform()},
      {"random_normal", RandomNormal()},
      {"truncated_normal", TruncatedNormal()},
      {"variance_scaling", VarianceScaling()}};
  std::vector<std::string> names;
  for (const auto& [candidate, initializer] : known) {
    if (candidate == name) {
      *this = initializer;
      return;
    }
    names.push_back(candidate);
  }
  fail<UsageError>("[initializer] there is no initializer called '{}'; there are: {}", name,
                   fmt::join(names, ", "));
}

}  // namespace lockstep
