#include "lockstep/cli/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/cli/format.h"

namespace lockstep::cli {
namespace {

constexpr double kRatePer256 = 0.1;
// Decoupled weight decay; equals 0.0001 in the gradient with momentum 0.9.
constexpr double kResNetDecay = 1e-3;
constexpr double kWarmUpEpochs = 5;
constexpr double kWarmUpPart = 0.1;  // the longest warm-up, as a fraction of the run
constexpr double kLastOfExponential = 0.01;
// When the rate falls to a tenth, as fractions of the run: epochs 30, 60 and 80 of 90.
constexpr std::array<double, 3> kSteps = {1.0 / 3, 2.0 / 3, 8.0 / 9};

struct NamedSchedule {
  const char* name;
  const char* text;
  // `rate` is the peak; `steps` counts those after the warm-up.
  Schedule (*make)(double rate, std::int64_t steps, WarmUp warm_up);
};

Schedule constant(double rate, std::int64_t, WarmUp warm_up) {
  return ConstantRate({.rate = rate, .warm_up = warm_up});
}
Schedule cosine(double rate, std::int64_t steps, WarmUp warm_up) {
  return CosineDecay({.initial_learning_rate = rate, .decay_steps = steps, .warm_up = warm_up});
}
Schedule linear(double rate, std::int64_t steps, WarmUp warm_up) {
  return PolynomialDecay({.initial_learning_rate = rate,
                          .decay_steps = steps,
                          .end_learning_rate = 0,
                          .warm_up = warm_up});
}
Schedule exponential(double rate, std::int64_t steps, WarmUp warm_up) {
  return ExponentialDecay({.initial_learning_rate = rate,
                           .decay_steps = steps,
                           .decay_rate = kLastOfExponential,
                           .warm_up = warm_up});
}
Schedule step(double rate, std::int64_t steps, WarmUp warm_up) {
  PiecewiseConstantOptions options{.boundaries = {}, .values = {rate}, .warm_up = warm_up};
  for (const double part : kSteps) {
    const auto boundary = static_cast<std::int64_t>(std::lround(part * static_cast<double>(steps)));
    if (!options.boundaries.empty() && boundary <= options.boundaries.back()) continue;
    options.boundaries.push_back(boundary);
    options.values.push_back(options.values.back() * 0.1);
  }
  return PiecewiseConstantDecay(std::move(options));
}

constexpr NamedSchedule kSchedules[] = {
    {"constant", "", constant},
    {"cosine", ", cosine decay to 0", cosine},
    {"linear", ", linear decay to 0", linear},
    {"exponential", ", exponential decay to a hundredth", exponential},
    {"step", ", a tenth at 1/3, 2/3 and 8/9 of the run", step},
};

const NamedSchedule& schedule_by_name(const std::string& name) {
  const auto* found = std::ranges::find_if(
      kSchedules, [&](const NamedSchedule& each) { return each.name == name; });
  require(found != std::end(kSchedules), "--schedule {}: there is no such schedule; use one of {}",
          name, schedule_names());
  return *found;
}

// What is decided before the lengths of warm-up and decay are known.
struct Choice {
  bool resnet = false;  // the usual recipe of ResNets
  double base = 0;      // the rate for one replica
  double factor = 1;    // scaling for the number of replicas
  std::string rate_text;
};

Choice choose_rate(const ZooEntry& entry, const RecipeOptions& options) {
  const RateScaling scaling = rate_scaling_by_name(options.scaling);
  Choice choice{.resnet = options.optimizer.empty() && entry.name.starts_with("resnet"),
                .base = 0,
                .factor = scaling_factor(scaling, options.replicas),
                .rate_text = ""};
  if (options.learning_rate || !choice.resnet) {
    const Optimizer alone = choose_optimizer(entry, options.optimizer, options.learning_rate);
    choice.base = alone.schedule().rate();
    if (choice.factor != 1.0) {
      choice.rate_text = fmt::format(" ({:g} × {:g} for {} replicas)", choice.factor, choice.base,
                                     options.replicas);
    }
    return choice;
  }
  // The rate follows the global batch, unless a scaling rule for replicas was asked for.
  const auto batch = static_cast<double>(options.global_batch);
  const bool by_replica = scaling != RateScaling::None;
  choice.base = kRatePer256 * (by_replica ? batch / options.replicas : batch) / 256;
  choice.rate_text = fmt::format(" ({:g} per 256 samples{})", kRatePer256,
                                 by_replica ? ", " + options.scaling + " in replicas" : "");
  return choice;
}

// 0: no warm-up.
std::int64_t warm_up_steps(const RecipeOptions& options, const Choice& choice) {
  const bool usual = choice.resnet || choice.factor != 1.0;
  const double asked = options.warm_up_epochs.value_or(usual ? kWarmUpEpochs : 0.0);
  if (asked == 0.0) return 0;
  require(options.steps_per_epoch > 0,
          "--warm-up-epochs: the length of an epoch is unknown; give --steps");
  double epochs = asked;
  if (choice.resnet && !options.warm_up_epochs) {
    epochs = std::min(epochs, kWarmUpPart * static_cast<double>(options.epochs));
  }
  return std::max<std::int64_t>(1,
                                std::lround(epochs * static_cast<double>(options.steps_per_epoch)));
}

}  // namespace

std::string schedule_names() {
  std::string names;
  for (const NamedSchedule& each : kSchedules) {
    names += (names.empty() ? "" : ", ") + std::string(each.name);
  }
  return names;
}

Recipe make_recipe(const ZooEntry& entry, const RecipeOptions& options) {
  const Choice choice = choose_rate(entry, options);
  const std::string name = !options.schedule.empty() ? options.schedule
                           : choice.resnet           ? "cosine"
                                                     : "constant";
  const NamedSchedule& schedule = schedule_by_name(name);
  const std::int64_t warm_up = warm_up_steps(options, choice);
  const std::int64_t all = options.steps_per_epoch * options.epochs;
  require(all > 0 || name == "constant",
          "--schedule {}: the length of an epoch is unknown; give --steps, or --schedule constant",
          name);
  Recipe recipe;
  recipe.rate = choice.base * choice.factor;
  recipe.base = choice.base;
  recipe.how = choice.rate_text;
  if (warm_up > 0) {
    recipe.how += fmt::format(", warm-up over the first {} steps", count_text(warm_up));
  }
  recipe.how += schedule.text;
  std::optional<double> decay = options.weight_decay;
  if (!decay && choice.resnet) decay = kResNetDecay;
  const WarmUp rise{.steps = warm_up, .start = choice.factor > 1.0 ? 1.0 / choice.factor : 0.0};
  recipe.optimizer = choose_optimizer(
      entry, options.optimizer,
      schedule.make(recipe.rate, std::max<std::int64_t>(1, all - warm_up), rise), decay);
  if (decay && *decay > 0) {
    recipe.optimizer.exclude_from_weight_decay({"gamma", "beta", "bias"});
    recipe.how += fmt::format(", weight decay {:g} except on norms and biases", *decay);
  }
  if (entry.name.starts_with("resnet")) recipe.how += ", residual branches start at zero";
  return recipe;
}

}  // namespace lockstep::cli
