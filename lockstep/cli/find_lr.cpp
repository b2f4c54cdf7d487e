// lockstep find-lr: finds a learning rate for a model (Smith, "Cyclical Learning Rates", 2017). The
// rate grows from step to step: the loss falls fastest at a good rate, and grows when the rate is
// too large.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "lockstep/base/error.h"
#include "lockstep/cli/chart.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/data_source.h"
#include "lockstep/cli/number.h"
#include "lockstep/cli/recipe.h"
#include "lockstep/cli/zoo.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/model.h"

namespace lockstep::cli {
namespace {

struct FindLrOptions {
  std::string model = "lenet";
  std::string data;
  Placement placement;
  BatchFlags batch;
  std::string optimizer;
  std::uint64_t seed = 0;
  double from = 1e-6;
  double to = 10;
  std::int64_t steps = 200;
  std::string output;
  std::string json;
};

constexpr double kSmoothing = 0.95;  // exponential moving average of the loss
constexpr double kTooLarge = 3;      // stop when the loss exceeds this many times its minimum
constexpr int kChartWidth = 80;

struct Sweep {
  std::vector<double> rates;
  std::vector<double> losses;  // smoothed
};

// The rate at which the loss falls fastest over log(rate); nothing if it never falls.
std::optional<double> steepest(const Sweep& sweep) {
  // The slope is taken over this many neighbours on both sides: single steps are noisy.
  const std::size_t reach = std::max<std::size_t>(2, sweep.rates.size() / 20);
  const std::size_t lowest =
      static_cast<std::size_t>(std::ranges::min_element(sweep.losses) - sweep.losses.begin());
  double best = 0;
  std::optional<double> rate;
  for (std::size_t i = reach; i + reach < sweep.rates.size() && i <= lowest; ++i) {
    const double rise = sweep.losses[i + reach] - sweep.losses[i - reach];
    const double slope =
        rise / (std::log(sweep.rates[i + reach]) - std::log(sweep.rates[i - reach]));
    if (slope >= best) continue;
    best = slope;
    rate = sweep.rates[i];
  }
  return rate;
}

Sweep sweep_rates(Model& model, const Dataset& batches, const FindLrOptions& options) {
  Sweep sweep;
  double mean = 0;
  double lowest = std::numeric_limits<double>::infinity();
  const double factor =
      std::pow(options.to / options.from, 1.0 / static_cast<double>(options.steps - 1));
  double rate = options.from;
  const auto begin = [&](Model& m) { m.set_learning_rate(rate); };
  const auto watch = [&](Model& m, std::int64_t, const BatchLogs& logs) {
    if (!std::isfinite(logs.loss())) {
      m.stop_training();
      return;
    }
    mean = kSmoothing * mean + (1 - kSmoothing) * logs.loss();
    const auto seen = static_cast<double>(sweep.rates.size() + 1);
    const double smoothed = mean / (1 - std::pow(kSmoothing, seen));
    sweep.rates.push_back(rate);
    sweep.losses.push_back(smoothed);
    lowest = std::min(lowest, smoothed);
    if (smoothed > kTooLarge * lowest) m.stop_training();
    rate *= factor;
    m.set_learning_rate(rate);
  };
  FitOptions fit;
  fit.epochs = 1;
  fit.steps_per_epoch = options.steps;
  fit.callbacks = {LambdaCallback({.on_train_begin = begin, .on_batch_end = watch})};
  fit.verbose = 0;
  model.fit(batches, fit);
  return sweep;
}

void run(const FindLrOptions& options) {
  check_target("--json", options.json);
  require(options.from > 0 && options.from < options.to,
          "--from {:g} --to {:g}: both must be above 0, and --to above --from", options.from,
          options.to);
  const int replicas = one_count(options.placement);
  const ZooEntry& entry = zoo_entry(options.model);
  const std::int64_t batch = global_batch(options.batch, replicas, entry.batch);
  const DataSource data = open_data(
      {.data = options.data, .task = entry.task, .samples = batch * 16, .seed = options.seed});
  Model model(entry.make(data.task));
  model.compile({.strategy = make_strategy(options.placement, replicas, replicas),
                 .optimizer = choose_optimizer(entry, options.optimizer, Schedule(options.from)),
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .precision = options.placement.precision,
                 .seed = options.seed});
  const Sweep sweep = sweep_rates(model, data.train(batch, options.seed).repeat(), options);
  const std::optional<double> best = steepest(sweep);
  const std::vector<Panel> panels = {{.title = options.model + ": loss by learning rate",
                                      .x_label = "learning rate",
                                      .series = {{"loss", sweep.rates, sweep.losses}},
                                      .log_x = true}};
  if (!options.output.empty()) write_chart(panels, options.output);
  if (!is_standard_output(options.json)) {
    fmt::print("{}\n", terminal_chart(panels, kChartWidth));
    if (best) {
      fmt::print("The loss falls fastest at {:.2g}: train with --learning-rate {:.1g}\n", *best,
                 *best);
    } else {
      fmt::print(
          "The loss never fell between {:g} and {:g}: try another --from and --to, or more "
          "--steps\n",
          options.from, options.to);
    }
  }
  Json json = {{"model", options.model},
               {"global_batch", batch},
               {"rates", sweep.rates},
               {"losses", sweep.losses},
               {"suggested", best ? Json(*best) : Json(nullptr)}};
  write_json(json, options.json);
}

}  // namespace

void add_find_lr(Program& program) {
  Command app =
      program.add_command("find-lr", "Finds a learning rate: trains briefly with a growing rate.");
  auto options = std::make_shared<FindLrOptions>();
  app.add_option("--model", options->model, "one of " + zoo_names()).capture_default_str();
  app.add_option("--data", options->data, "as in lockstep train");
  add_placement(app, options->placement);
  add_batch(app, options->batch);
  app.add_option("--optimizer", options->optimizer, "sgd, adam, … (depends on the model)");
  app.add_option("--seed", options->seed, "seed of weights and shuffling")
      .capture_default_str()
      .check(seed_number());
  app.add_option("--from", options->from, "the first rate")
      .capture_default_str()
      .check(number(0, kMostRate));
  app.add_option("--to", options->to, "the last rate")
      .capture_default_str()
      .check(number(0, kMostRate));
  app.add_option("--steps", options->steps, "steps from the first rate to the last")
      .capture_default_str()
      .check(whole_number(10, 1'000'000));
  app.add_option("--output", options->output, "also write the chart to this .png or .svg file");
  app.add_option("--json", options->json, "write the result to this file (-: standard output)");
  app.callback([options] { run(*options); });
}

}  // namespace lockstep::cli
