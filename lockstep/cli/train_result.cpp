#include "lockstep/cli/train_result.h"

#include <fmt/format.h>

#include <cmath>
#include <ostream>

#include "lockstep/cli/explanation_json.h"
#include "lockstep/cli/interrupt.h"

namespace lockstep::cli {
namespace {

// The logs of an epoch as --json promises them: metrics separate from losses, validation separate.
Json epoch_json(const EpochLog& epoch) {
  Json json = {{"epoch", epoch.epoch}};
  Json metrics = Json::object();
  Json val_metrics = Json::object();
  for (const auto& [name, value] : epoch.logs.items()) {
    if (name == "loss" || name == "val_loss" || name == "samples_per_s" || name == "seconds" ||
        name == "lr") {
      json[name] = value;
    } else if (name.starts_with("val_")) {
      val_metrics[name.substr(4)] = value;
    } else {
      metrics[name] = value;
    }
  }
  json["metrics"] = std::move(metrics);
  json["val_metrics"] = std::move(val_metrics);
  return json;
}

// What is infinite is null: the gradient could not be told from zero.
Json noise_json(const History& history) {
  const NoiseScale& noise = *history.noise_scale;
  const auto finite = [](double value) { return std::isfinite(value) ? Json(value) : Json(); };
  const auto batch = static_cast<double>(history.batch_size);
  const RateRule rule = rate_rule_of(history.optimizer);
  return {{"value", finite(noise.value)},
          {"low", finite(noise.low)},
          {"high", finite(noise.high)},
          {"samples", noise.samples},
          {"squared_gradient", finite(noise.squared_gradient)},
          {"trace", finite(noise.trace)},
          {"seconds", history.noise_scale_seconds},
          {"largest_batch", finite(noise.value)},
          {"rate_for_twice_the_batch", rate_factor(noise.value, batch, 2 * batch, rule)}};
}

}  // namespace

Json result_json(const TrainOptions& options, const Strategy& strategy, std::int64_t batch,
                 const History& history, const Ending& ending) {
  Json epochs = Json::array();
  for (const EpochLog& epoch : history.epochs) epochs.push_back(epoch_json(epoch));
  Json replicas = Json::array();
  for (const ReplicaTime& replica : history.replicas) {
    replicas.push_back({{"device", replica.device},
                        {"samples", replica.samples},
                        {"attribution", attribution_json(replica.attribution)}});
  }
  const int count = strategy.num_replicas_in_sync();
  Json json = {{"model", options.model},
               {"strategy", strategy_name(options.placement, count)},
               {"devices", strategy.devices()},
               {"replicas", count},
               {"global_batch", batch},
               {"precision", options.placement.precision},
               {"steps", history.steps},
               {"seconds", history.seconds},
               {"epochs", std::move(epochs)},
               {"step_ms", {{"median", history.median_step_ms()}, {"p99", history.p99_step_ms()}}},
               {"peak_bytes", history.peak_bytes},
               {"micro_batches", history.micro_batches},
               {"attribution", attribution_json(history.attribution)},
               {"by_replica", std::move(replicas)},
               {"checkpoint", ending.checkpoint ? Json(*ending.checkpoint) : Json(nullptr)}};
  for (const SlowWorker& slow : history.slow_workers) {
    json["slow_workers"].push_back({{"worker", slow.worker},
                                    {"times_slower", slow.times},
                                    {"waiting", slow.waiting},
                                    {"steps", slow.steps},
                                    {"seconds", slow.seconds}});
  }
  if (!history.failure.empty()) json["failure"] = history.failure;
  if (history.restores > 0) json["restores"] = history.restores;
  for (const Recovery& recovery : history.recoveries) {
    json["recoveries"].push_back({{"cause", recovery.cause},
                                  {"step", recovery.step},
                                  {"lost_steps", recovery.lost_steps},
                                  {"seconds", recovery.seconds},
                                  {"workers", recovery.workers}});
  }
  if (ending.signal != 0) json["interrupted"] = signal_name(ending.signal);
  if (history.noise_scale) json["noise_scale"] = noise_json(history);
  if (history.loss_scale) {
    json["loss_scale"] = *history.loss_scale;
    json["overflowed_steps"] = history.overflowed_steps;
  }
  return json;
}

void report(std::ostream& out, const History& history, const EndReport& of) {
  const auto& [run, ending, epochs, explanation] = of;
  if (history.epochs.empty() && ending.signal != 0) {
    out << fmt::format("interrupted by {} before the first step; continue with --resume {}\n",
                       signal_name(ending.signal), run);
    return;
  }
  if (history.epochs.empty()) {
    out << fmt::format(
        "Nothing to do: the run in {} has done its {} epoch{}; continue with --resume "
        "{} --epochs {}\n",
        run, epochs, epochs == 1 ? "" : "s", run, epochs + 1);
    return;
  }
  out << '\n' << history.report({.program = true, .explanation = explanation}) << '\n';
  const Logs& logs = history.epochs.back().logs;
  if (const auto accuracy = logs.find("val_accuracy")) {
    out << fmt::format("test accuracy {:.2f}%\n", *accuracy * 100);
  }
  if (ending.signal != 0) {
    out << fmt::format("interrupted by {}; continue with --resume {}\n", signal_name(ending.signal),
                       run);
  }
  if (ending.checkpoint) out << fmt::format("checkpoint    {}\n", *ending.checkpoint);
}

}  // namespace lockstep::cli
