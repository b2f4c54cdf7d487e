// lockstep train: a model by name, trained on a folder of data.
#include <fmt/core.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <iostream>

#include "lockstep/base/error.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/data_source.h"
#include "lockstep/cli/format.h"
#include "lockstep/cli/run_folder.h"
#include "lockstep/cli/zoo.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/profile/trace.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/model.h"
#include "lockstep/train/replicas.h"

namespace lockstep::cli {
namespace {

struct Options {
  std::string model = "lenet";
  std::string data;
  Placement placement;
  BatchFlags batch;
  std::int64_t epochs = 0;  // 0: not given
  std::int64_t steps = 0;
  std::string optimizer;
  std::optional<double> learning_rate;
  std::string scaling = "none";
  std::int64_t warm_up_epochs = 5;
  std::uint64_t seed = 0;
  std::string run_dir;
  std::string resume;
  std::string json;
  std::string trace;
};

constexpr std::int64_t kEpochs = 5;
constexpr std::int64_t kValidationBatch = 256;
// Synthetic data holds this many batches, at least.
constexpr std::int64_t kSyntheticBatches = 16;

// Set by SIGINT and SIGTERM: end behind the step that is running, and save.
std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void interrupt(int signal) {
  interrupted = true;
  std::signal(signal, SIG_DFL);  // the second one ends the process at once
}

CallbackRef stop_when_interrupted() {
  std::signal(SIGINT, interrupt);
  std::signal(SIGTERM, interrupt);
  const auto stop = [](Model& model, std::int64_t, const BatchLogs&) {
    if (interrupted) model.stop_training();
  };
  return LambdaCallback({.on_batch_end = stop, .looks_at_model = false});
}

// The logs of an epoch as the contract has them: metrics apart from losses, validation apart.
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

Json attribution_json(const Attribution& a) {
  return {{"compute", a.compute},
          {"communication", a.communication},
          {"input", a.input},
          {"wait", a.wait},
          {"host", a.host}};
}

Json result_json(const Options& options, const Strategy& strategy, std::int64_t batch,
                 const History& history, const std::string& checkpoint) {
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
               {"attribution", attribution_json(history.attribution)},
               {"by_replica", std::move(replicas)},
               {"checkpoint", checkpoint}};
  if (history.loss_scale) {
    json["loss_scale"] = *history.loss_scale;
    json["overflowed_steps"] = history.overflowed_steps;
  }
  return json;
}

// The rate of a run, for the number of its replicas.
struct RateOfRun {
  Schedule schedule = 0.0;
  double last = 0;  // behind the warm-up
  std::string how;  // ", 2 × 0.001 after 5 epochs of warm-up"
};

RateOfRun rate_of(const Options& options, int replicas, const Dataset& batches) {
  const RateScaling scaling = rate_scaling_by_name(options.scaling);
  const Schedule base =
      choose_optimizer(zoo_entry(options.model), options.optimizer, options.learning_rate)
          .schedule();
  const double factor = scaling_factor(scaling, replicas);
  RateOfRun rate{.schedule = base, .last = base.rate() * factor, .how = ""};
  if (factor == 1.0) return rate;
  const std::optional<std::int64_t> whole = batches.cardinality();
  const std::int64_t steps = options.steps > 0 ? options.steps : whole.value_or(0);
  require(steps > 0 || options.warm_up_epochs == 0,
          "--warm-up-epochs: the length of an epoch is not known; give --steps");
  rate.schedule = scaled(
      base,
      {.replicas = replicas, .scaling = scaling, .warm_up_steps = steps * options.warm_up_epochs});
  rate.how = fmt::format(" ({:g} × {:g} for {} replicas, reached over the first {} epochs)", factor,
                         base.rate(), replicas, options.warm_up_epochs);
  return rate;
}

// "2 cores", "NVIDIA H200"
std::string what_it_is(const Device& device) {
  const auto* cpu = dynamic_cast<const CpuDevice*>(&device);
  if (cpu == nullptr) return gpu_of(device).model;
  return fmt::format("{} core{}", cpu->cores().size(), cpu->cores().size() == 1 ? "" : "s");
}

// "global batch 128 = 2 replicas × 64; cpu:0 (1 core), cpu:1 (1 core)"
std::string placement_text(const Strategy& strategy, std::int64_t batch) {
  const Replicas& replicas = *strategy.impl().replicas;
  std::string where;
  for (int r = 0; r < replicas.size(); ++r) {
    const Device& device = replicas.device(r);
    where += fmt::format("{}{} ({})", r > 0 ? ", " : "", device.name(), what_it_is(device));
  }
  if (replicas.size() == 1) return fmt::format("batch {}, {}\n", batch, where);
  return fmt::format("global batch {} = {} replicas × {}; {}\n", batch, replicas.size(),
                     batch / replicas.size(), where);
}

void report(std::ostream& out, const History& history, const RunFolder& folder) {
  if (history.epochs.empty()) {
    out << "Nothing to do: the checkpoint has already reached the last epoch.\n";
    return;
  }
  out << '\n' << history.report() << '\n';
  const Logs& logs = history.epochs.back().logs;
  if (const auto accuracy = logs.find("val_accuracy")) {
    out << fmt::format("test accuracy {:.2f}%\n", *accuracy * 100);
  }
  if (interrupted)
    out << fmt::format("interrupted; go on with --resume {}\n", folder.path().string());
  out << fmt::format("checkpoint    {}\n", folder.checkpoint().string());
}

void run(const Options& options) {
  check_target("--json", options.json);
  check_target("--trace", options.trace);
  const int replicas = one_count(options.placement);
  const ZooEntry& entry = zoo_entry(options.model);
  const std::int64_t batch = replicas * batch_per_replica(options.batch, replicas, entry.batch);
  choose_optimizer(entry, options.optimizer, options.learning_rate);  // refuses unknown ones first
  const RunFolder folder(options.run_dir, options.resume);
  const DataSource data = open_data({.data = options.data,
                                     .task = entry.task,
                                     .samples = batch * kSyntheticBatches,
                                     .seed = options.seed});

  const Dataset batches = data.train(batch, options.seed);
  const RateOfRun rate = rate_of(options, replicas, batches);
  const Optimizer optimizer = choose_optimizer(entry, options.optimizer, rate.schedule);
  const Strategy strategy = make_strategy(options.placement, replicas, replicas);
  Model model(entry.make(data.task));
  model.compile({.strategy = strategy,
                 .optimizer = optimizer,
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {SparseCategoricalAccuracy({.name = "accuracy"})},
                 .precision = options.placement.precision,
                 .seed = options.seed});
  model.build(data.task.sample);

  // Where the JSON goes to the terminal, what is for people goes to the other stream.
  const bool aside = options.json == "-";
  std::ostream& out = aside ? std::cerr : std::cout;
  // Called when everything has been found to be in order.
  const auto begin = [&](Model&) {
    folder.create();
    out << fmt::format("{}: {} parameters{}, {} at {:g}{}\n{}{}\n", options.model,
                       count_text(model.parameter_count()), precision_text(options.placement),
                       optimizer.name(), rate.last, rate.how, placement_text(strategy, batch),
                       data.description);
    out.flush();
  };

  FitOptions fit;
  fit.epochs = options.epochs > 0 ? options.epochs : options.steps > 0 ? 1 : kEpochs;
  if (options.steps > 0) fit.steps_per_epoch = options.steps;
  fit.validation_data = data.test(kValidationBatch);
  fit.resume = folder.resumed();
  const bool terminal = isatty(aside ? STDERR_FILENO : STDOUT_FILENO) == 1;
  fit.callbacks = {
      LambdaCallback({.on_train_begin = begin}),
      stop_when_interrupted(),
      ProgressBar(out, {.terminal = terminal}),
      CSVLogger({.path = folder.metrics(), .append = !folder.resumed().empty()}),
      ModelCheckpoint({.path = folder.checkpoint().string()}),
  };
  const History history = model.fit(batches, fit);

  report(out, history, folder);
  for (const std::string& remark : model.remarks()) out << "note: " << remark << "\n";
  if (!options.trace.empty()) write_trace(model.recorder(), options.trace);
  write_json(result_json(options, strategy, batch, history, folder.checkpoint().string()),
             options.json);
}

}  // namespace

void add_train(CLI::App& program) {
  CLI::App* app = program.add_subcommand("train", "Trains a model and saves it.");
  auto options = std::make_shared<Options>();
  app->add_option("--model", options->model, "one of " + zoo_names())->capture_default_str();
  app->add_option(
      "--data", options->data,
      "a folder: IDX files, a binary CIFAR set, TFRecord files, or one folder of images a "
      "class; or synthetic (Fashion-MNIST, as Debian packages it)");
  add_placement(*app, options->placement);
  add_batch(*app, options->batch);
  app->add_option("--epochs", options->epochs,
                  fmt::format("the last epoch's number ({}; 1 with --steps)", kEpochs))
      ->check(CLI::PositiveNumber);
  app->add_option("--steps", options->steps, "steps of an epoch (all that the data has)")
      ->check(CLI::PositiveNumber);
  app->add_option("--optimizer", options->optimizer, "sgd, adam, … (what suits the model)");
  app->add_option("--learning-rate", options->learning_rate, "rate (what suits the optimizer)")
      ->check(CLI::NonNegativeNumber);
  app->add_option("--learning-rate-scaling", options->scaling,
                  "for several replicas: none, linear or sqrt")
      ->capture_default_str();
  app->add_option("--warm-up-epochs", options->warm_up_epochs,
                  "epochs in which a scaled rate is reached")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app->add_option("--seed", options->seed, "of weights, shuffling and dropout")
      ->capture_default_str();
  app->add_option("--run-dir", options->run_dir, "folder of the run (runs/<date and time>)");
  app->add_option("--resume", options->resume, "a run's folder, or a checkpoint, to go on from");
  app->add_option("--trace", options->trace, "write the last steps as a trace for Perfetto");
  app->add_option("--json", options->json, "write the result to this file (-: here)");
  app->callback([options] { run(*options); });
}

}  // namespace lockstep::cli
