// The optimizers: each checks its options and names a rule of ops/update.h.
#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/optim/optimizer.h"

namespace lockstep {
namespace {

void expect_fraction(std::string_view rule, std::string_view option, double value) {
  require(value >= 0.0 && value < 1.0, "[{}] {} is {}; it must be at least 0 and below 1", rule,
          option, value);
}

void expect_not_negative(std::string_view rule, std::string_view option, double value) {
  require(std::isfinite(value) && value >= 0.0,
          "[{}] {} is {}; it must be a finite number, 0 or more", rule, option, value);
}

void expect_positive(std::string_view rule, std::string_view option, double value) {
  require(std::isfinite(value) && value > 0.0, "[{}] {} is {}; it must be a finite number above 0",
          rule, option, value);
}

// Decoupled weight decay, an attribute only if it is not 0.
void set_decay(Attrs& attrs, std::string_view rule, double weight_decay) {
  expect_not_negative(rule, "weight_decay", weight_decay);
  if (weight_decay != 0.0) attrs.set("weight_decay", weight_decay);
}

Attrs adam_attrs(std::string_view rule, double beta_1, double beta_2, double epsilon) {
  expect_fraction(rule, "beta_1", beta_1);
  expect_fraction(rule, "beta_2", beta_2);
  expect_positive(rule, "epsilon", epsilon);
  return {{"beta_1", beta_1}, {"beta_2", beta_2}, {"epsilon", epsilon}};
}

using Make = Optimizer (*)(std::optional<Schedule>, std::optional<double> weight_decay);

template <class Options, Optimizer (*kMake)(Options)>
Optimizer make_at(std::optional<Schedule> learning_rate, std::optional<double> weight_decay) {
  Options options;
  if (learning_rate) options.learning_rate = *learning_rate;
  if (weight_decay) options.weight_decay = *weight_decay;
  return kMake(std::move(options));
}

template <class Options>
Clip clip_of(const Options& options) {
  return {
      .value = options.clipvalue, .norm = options.clipnorm, .global_norm = options.global_clipnorm};
}

// The options with a rate that was given by position.
template <class Options>
Options at_rate(Schedule learning_rate, Options options) {
  const Schedule& named = options.learning_rate;
  const Schedule usual = Options().learning_rate;
  require(named.constant() && named.rate() == usual.rate(),
          "[optimizer] learning_rate is given twice, as an argument and by name");
  options.learning_rate = std::move(learning_rate);
  return options;
}

constexpr std::array<std::pair<std::string_view, Make>, 7> kOptimizers = {{
    {"sgd", make_at<SGDOptions, SGD>},
    {"adam", make_at<AdamOptions, Adam>},
    {"adamw", make_at<AdamWOptions, AdamW>},
    {"rmsprop", make_at<RMSpropOptions, RMSprop>},
    {"adagrad", make_at<AdagradOptions, Adagrad>},
    {"lars", make_at<LARSOptions, LARS>},
    {"lamb", make_at<LAMBOptions, LAMB>},
}};

}  // namespace

Optimizer SGD(SGDOptions options) {
  expect_fraction("sgd", "momentum", options.momentum);
  Optimizer::Rule rule{.name = "sgd",
                       .attrs = {{"momentum", options.momentum}, {"nesterov", options.nesterov}},
                       .slots = {}};
  if (options.momentum > 0.0) rule.slots.push_back("v");
  set_decay(rule.attrs, rule.name, options.weight_decay);
  return {std::move(rule), std::move(options.learning_rate), clip_of(options)};
}

Optimizer Adam(AdamOptions options) {
  Optimizer::Rule rule{.name = "adam",
                       .attrs = adam_attrs("adam", options.beta_1, options.beta_2, options.epsilon),
                       .slots = {"m", "v"}};
  set_decay(rule.attrs, rule.name, options.weight_decay);
  return {std::move(rule), std::move(options.learning_rate), clip_of(options)};
}

Optimizer AdamW(AdamWOptions options) {
  Optimizer::Rule rule{
      .name = "adamw",
      .attrs = adam_attrs("adamw", options.beta_1, options.beta_2, options.epsilon),
      .slots = {"m", "v"}};
  expect_not_negative(rule.name, "weight_decay", options.weight_decay);
  rule.attrs.set("weight_decay", options.weight_decay);
  return {std::move(rule), std::move(options.learning_rate), clip_of(options)};
}

Optimizer RMSprop(RMSpropOptions options) {
  expect_fraction("rmsprop", "rho", options.rho);
  expect_fraction("rmsprop", "momentum", options.momentum);
  expect_positive("rmsprop", "epsilon", options.epsilon);
  Optimizer::Rule rule{.name = "rmsprop",
                       .attrs = {{"rho", options.rho},
                                 {"momentum", options.momentum},
                                 {"epsilon", options.epsilon},
                                 {"centered", options.centered}},
                       .slots = {"v"}};
  if (options.momentum > 0.0) rule.slots.push_back("m");
  if (options.centered) rule.slots.push_back("mean");
  set_decay(rule.attrs, rule.name, options.weight_decay);
  return {std::move(rule), std::move(options.learning_rate), clip_of(options)};
}

Optimizer Adagrad(AdagradOptions options) {
  expect_not_negative("adagrad", "initial_accumulator_value", options.initial_accumulator_value);
  expect_positive("adagrad", "epsilon", options.epsilon);
  Optimizer::Rule rule{.name = "adagrad",
                       .attrs = {{"epsilon", options.epsilon}},
                       .slots = {"a"},
                       .slot_start = options.initial_accumulator_value};
  set_decay(rule.attrs, rule.name, options.weight_decay);
  return {std::move(rule), std::move(options.learning_rate), clip_of(options)};
}

Optimizer LARS(LARSOptions options) {
  expect_fraction("lars", "momentum", options.momentum);
  expect_not_negative("lars", "weight_decay", options.weight_decay);
  expect_positive("lars", "trust", options.trust);
  expect_not_negative("lars", "epsilon", options.epsilon);
  return {{.name = "lars",
           .attrs = {{"momentum", options.momentum},
                     {"weight_decay", options.weight_decay},
                     {"trust", options.trust},
                     {"epsilon", options.epsilon}},
           .slots = {"v"}},
          std::move(options.learning_rate),
          clip_of(options)};
}

Optimizer LAMB(LAMBOptions options) {
  Optimizer::Rule rule{.name = "lamb",
                       .attrs = adam_attrs("lamb", options.beta_1, options.beta_2, options.epsilon),
                       .slots = {"m", "v"}};
  expect_not_negative(rule.name, "weight_decay", options.weight_decay);
  rule.attrs.set("weight_decay", options.weight_decay);
  return {std::move(rule), std::move(options.learning_rate), clip_of(options)};
}

Optimizer SGD(Schedule learning_rate, SGDOptions options) {
  return SGD(at_rate(std::move(learning_rate), std::move(options)));
}

Optimizer Adam(Schedule learning_rate, AdamOptions options) {
  return Adam(at_rate(std::move(learning_rate), std::move(options)));
}

Optimizer AdamW(Schedule learning_rate, AdamWOptions options) {
  return AdamW(at_rate(std::move(learning_rate), std::move(options)));
}

Optimizer RMSprop(Schedule learning_rate, RMSpropOptions options) {
  return RMSprop(at_rate(std::move(learning_rate), std::move(options)));
}

Optimizer Adagrad(Schedule learning_rate, AdagradOptions options) {
  return Adagrad(at_rate(std::move(learning_rate), std::move(options)));
}

Optimizer LARS(Schedule learning_rate, LARSOptions options) {
  return LARS(at_rate(std::move(learning_rate), std::move(options)));
}

Optimizer LAMB(Schedule learning_rate, LAMBOptions options) {
  return LAMB(at_rate(std::move(learning_rate), std::move(options)));
}

Optimizer::Optimizer(const char* name) : Optimizer(optimizer_by_name(name)) {}

Optimizer::Optimizer(const std::string& name) : Optimizer(optimizer_by_name(name)) {}

Optimizer optimizer_by_name(const std::string& name, std::optional<Schedule> learning_rate,
                            std::optional<double> weight_decay) {
  std::string lower = name;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  std::string known;
  for (const auto& [candidate, make] : kOptimizers) {
    if (candidate == lower) return make(learning_rate, weight_decay);
    known += known.empty() ? "" : ", ";
    known += candidate;
  }
  fail<UsageError>("[optimizer] there is no optimizer called {}; there are: {}", name, known);
}

}  // namespace lockstep
