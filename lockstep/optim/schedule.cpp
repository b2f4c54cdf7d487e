#include "lockstep/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/base/error.h"
#include "lockstep/graph/ops/elementwise.h"

namespace lockstep {
namespace {

// A schedule without its warm-up, both as nodes and on the host. Both take the iteration counted
// from the end of the warm-up.
struct AfterWarmUp {
  std::function<Value(Value)> nodes;
  std::function<double(double)> host;
};

void expect_rate(std::string_view schedule, std::string_view option, double rate) {
  require(std::isfinite(rate) && rate >= 0.0,
          "[{}] {} is {}; a learning rate is a finite number, 0 or more", schedule, option, rate);
}

void expect_steps(std::string_view schedule, std::int64_t steps) {
  require(steps > 0, "[{}] decay_steps is {}; it must be at least 1", schedule, steps);
}

Schedule with_warm_up(std::string name, double first, WarmUp warm_up, AfterWarmUp after) {
  require(warm_up.steps >= 0, "[{}] warm_up.steps is {}; it must be 0 or more", name,
          warm_up.steps);
  require(std::isfinite(warm_up.start) && warm_up.start >= 0.0,
          "[{}] warm_up.start is {}; it is the fraction of the first rate to start with, 0 or more",
          name, warm_up.start);
  if (warm_up.steps == 0) {
    return {
        std::move(name), std::move(after.nodes),
        [host = std::move(after.host)](std::int64_t t) { return host(static_cast<double>(t)); }};
  }
  const auto steps = static_cast<double>(warm_up.steps);
  const double start = first * warm_up.start;
  const double slope = (first - start) / steps;
  auto nodes = [=, after_nodes = std::move(after.nodes)](Value t) {
    Graph& graph = t.graph();
    const Value rest = after_nodes(maximum(t - steps, graph.scalar(0.0)));
    return select(less(t, graph.scalar(steps)), t * slope + start, rest);
  };
  auto host = [=, after_host = std::move(after.host)](std::int64_t iteration) {
    const auto t = static_cast<double>(iteration);
    return t < steps ? start + slope * t : after_host(t - steps);
  };
  return {std::move(name), std::move(nodes), std::move(host)};
}

// How much of the decay has passed, in [0, 1].
Value fraction(Value t, double steps) {
  Graph& graph = t.graph();
  return div(minimum(t, graph.scalar(steps)), graph.scalar(steps));
}
double fraction(double t, double steps) {
  return std::min(t, steps) / steps;
}

// cos(pi x) for x in [0, 1], for which there is no op: -sin(z) at z = pi (x - 1/2), by sin's Taylor
// series up to z^13. The error is below 1e-9 on [-pi/2, pi/2].
Value cos_pi(Value x) {
  const Value z = (x - 0.5) * std::numbers::pi;
  const Value z2 = square(z);
  double coefficient = 1.0 / 6'227'020'800.0;  // 1/13!
  Value sum = z.graph().scalar(coefficient);
  for (int power = 13; power > 1; power -= 2) {
    coefficient *= -power * (power - 1);
    sum = sum * z2 + coefficient;
  }
  return -(sum * z);
}

}  // namespace

Schedule ConstantRate(ConstantRateOptions options) {
  expect_rate("constant", "rate", options.rate);
  if (options.warm_up.steps == 0) return options.rate;
  const double rate = options.rate;
  return with_warm_up("constant", rate, options.warm_up,
                      {.nodes = [=](Value t) { return t.graph().scalar(rate); },
                       .host = [=](double) { return rate; }});
}

Schedule ExponentialDecay(ExponentialDecayOptions options) {
  const char* name = "exponential_decay";
  expect_rate(name, "initial_learning_rate", options.initial_learning_rate);
  expect_steps(name, options.decay_steps);
  require(std::isfinite(options.decay_rate) && options.decay_rate > 0.0,
          "[{}] decay_rate is {}; it must be a finite number above 0", name, options.decay_rate);
  const auto steps = static_cast<double>(options.decay_steps);
  const double initial = options.initial_learning_rate;
  const double log_rate = std::log(options.decay_rate);
  const bool staircase = options.staircase;
  return with_warm_up(name, initial, options.warm_up,
                      {.nodes =
                           [=](Value t) {
                             // A true division: a product with 1/steps can end up just below the
                             // next stair.
                             Value passed = div(t, t.graph().scalar(steps));
                             if (staircase) passed = cast(cast(passed, DType::I64), DType::F32);
                             return exp(passed * log_rate) * initial;
                           },
                       .host =
                           [=](double t) {
                             const double passed = t / steps;
                             return initial *
                                    std::exp(log_rate * (staircase ? std::floor(passed) : passed));
                           }});
}

Schedule CosineDecay(CosineDecayOptions options) {
  const char* name = "cosine_decay";
  expect_rate(name, "initial_learning_rate", options.initial_learning_rate);
  expect_steps(name, options.decay_steps);
  expect_rate(name, "alpha", options.alpha);
  const auto steps = static_cast<double>(options.decay_steps);
  const double middle = options.initial_learning_rate * (1.0 + options.alpha) / 2.0;
  const double swing = options.initial_learning_rate * (1.0 - options.alpha) / 2.0;
  return with_warm_up(
      name, options.initial_learning_rate, options.warm_up,
      {.nodes = [=](Value t) { return cos_pi(fraction(t, steps)) * swing + middle; },
       .host =
           [=](double t) {
             return middle + swing * std::cos(std::numbers::pi * fraction(t, steps));
           }});
}

Schedule PolynomialDecay(PolynomialDecayOptions options) {
  const char* name = "polynomial_decay";
  expect_rate(name, "initial_learning_rate", options.initial_learning_rate);
  expect_rate(name, "end_learning_rate", options.end_learning_rate);
  expect_steps(name, options.decay_steps);
  require(std::isfinite(options.power) && options.power > 0.0,
          "[{}] power is {}; it must be a finite number above 0", name, options.power);
  const auto steps = static_cast<double>(options.decay_steps);
  const double span = options.initial_learning_rate - options.end_learning_rate;
  const double end = options.end_learning_rate;
  const double power = options.power;
  return with_warm_up(
      name, options.initial_learning_rate, options.warm_up,
      {.nodes =
           [=](Value t) {
             Graph& graph = t.graph();
             Value left = graph.scalar(1.0) - fraction(t, steps);
             if (power != 1.0) left = pow(left, graph.scalar(power));
             return left * span + end;
           },
       .host = [=](double t) { return span * std::pow(1.0 - fraction(t, steps), power) + end; }});
}

Schedule PiecewiseConstantDecay(PiecewiseConstantOptions options) {
  const char* name = "piecewise_constant_decay";
  require(
      options.values.size() == options.boundaries.size() + 1,
      "[{}] there are {} values for {} boundaries; there must be one value more than boundaries",
      name, options.values.size(), options.boundaries.size());
  for (double value : options.values) expect_rate(name, "values", value);
  for (std::size_t i = 1; i < options.boundaries.size(); ++i) {
    require(options.boundaries[i - 1] < options.boundaries[i],
            "[{}] boundaries must increase, but {} is followed by {}", name,
            options.boundaries[i - 1], options.boundaries[i]);
  }
  const auto& boundaries = options.boundaries;
  const auto& values = options.values;
  return with_warm_up(
      name, values.front(), options.warm_up,
      {.nodes =
           [=](Value t) {
             Graph& graph = t.graph();
             Value rate = graph.scalar(values.back());
             for (std::size_t i = boundaries.size(); i-- > 0;) {
               const Value boundary = graph.scalar(static_cast<double>(boundaries[i]));
               rate = select(less_equal(t, boundary), graph.scalar(values[i]), rate);
             }
             return rate;
           },
       .host =
           [=](double t) {
             const auto piece = std::lower_bound(boundaries.begin(), boundaries.end(), t,
                                                 [](std::int64_t boundary, double at) {
                                                   return static_cast<double>(boundary) < at;
                                                 });
             return values[static_cast<std::size_t>(piece - boundaries.begin())];
           }});
}

RateScaling rate_scaling_by_name(const std::string& name) {
  if (name == "none") return RateScaling::None;
  if (name == "linear") return RateScaling::Linear;
  require(name == "sqrt", "[schedule] there is no scaling called {}; there are: none, linear, sqrt",
          name);
  return RateScaling::Sqrt;
}

double scaling_factor(RateScaling scaling, int replicas) {
  require(replicas > 0, "[schedule] a rate cannot be scaled for {} replicas", replicas);
  switch (scaling) {
    case RateScaling::None:
      return 1.0;
    case RateScaling::Linear:
      return replicas;
    case RateScaling::Sqrt:
      return std::sqrt(static_cast<double>(replicas));
  }
  fail<InternalError>("unknown scaling {}", static_cast<int>(scaling));
}

Schedule scaled(const Schedule& schedule, const ScaledOptions& options) {
  const double factor = scaling_factor(options.scaling, options.replicas);
  require(options.warm_up_steps >= 0, "[schedule] warm_up_steps is {}; it must be 0 or more",
          options.warm_up_steps);
  if (factor == 1.0) return schedule;
  if (schedule.constant()) {
    return ConstantRate({.rate = schedule.rate() * factor,
                         .warm_up = {.steps = options.warm_up_steps, .start = 1.0 / factor}});
  }
  const auto steps = static_cast<double>(std::max<std::int64_t>(options.warm_up_steps, 1));
  const bool warm = options.warm_up_steps > 0;
  auto nodes = [=](Value t) {
    if (!warm) return schedule.nodes(t) * factor;
    const Value grown = minimum(t / t.graph().scalar(steps), t.graph().scalar(1.0));
    return schedule.nodes(t) * (grown * (factor - 1.0) + 1.0);
  };
  auto host = [=](std::int64_t iteration) {
    const double grown = warm ? std::min(static_cast<double>(iteration) / steps, 1.0) : 1.0;
    return schedule.at(iteration) * (1.0 + grown * (factor - 1.0));
  };
  return {schedule.name(), std::move(nodes), std::move(host)};
}

}  // namespace lockstep
