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
#include "lockstep/profile/trace.h"
#include "lockstep/train/callbacks.h"
#include "lockstep/train/model.h"

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
  return LambdaCallback({.on_batch_end = [](Model& model, std::int64_t, const BatchLogs&) {
    if (interrupted) model.stop_training();
  }});
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

Json result_json(const Options& options, const Device& device, std::int64_t batch,
                 const History& history, const std::string& checkpoint) {
  Json epochs = Json::array();
  for (const EpochLog& epoch : history.epochs) epochs.push_back(epoch_json(epoch));
  const Attribution& a = history.attribution;
  return {{"model", options.model},
          {"strategy", options.placement.strategy},
          {"devices", {device.name()}},
          {"replicas", options.placement.replicas},
          {"global_batch", batch},
          {"steps", history.steps},
          {"seconds", history.seconds},
          {"epochs", std::move(epochs)},
          {"step_ms", {{"median", history.median_step_ms()}, {"p99", history.p99_step_ms()}}},
          {"peak_bytes", history.peak_bytes},
          {"attribution",
           {{"compute", a.compute},
            {"communication", a.communication},
            {"input", a.input},
            {"wait", a.wait},
            {"host", a.host}}},
          {"checkpoint", checkpoint}};
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
  const auto device = make_device(options.placement);
  const ZooEntry& entry = zoo_entry(options.model);
  const std::int64_t batch =
      batch_per_replica(options.batch, options.placement.replicas, entry.batch);
  const Optimizer optimizer = choose_optimizer(entry, options.optimizer, options.learning_rate);
  const RunFolder folder(options.run_dir, options.resume);
  const DataSource data = open_data({.data = options.data,
                                     .task = entry.task,
                                     .samples = batch * kSyntheticBatches,
                                     .seed = options.seed});

  Model model(entry.make(data.task));
  model.compile({.optimizer = optimizer,
                 .loss = SparseCategoricalCrossentropy({.from_logits = true}),
                 .metrics = {SparseCategoricalAccuracy({.name = "accuracy"})},
                 .seed = options.seed,
                 .device = device.get()});
  model.build(data.task.sample);

  // Where the JSON goes to the terminal, what is for people goes to the other stream.
  const bool aside = options.json == "-";
  std::ostream& out = aside ? std::cerr : std::cout;
  // Called when everything has been found to be in order.
  const auto begin = [&](Model&) {
    folder.create();
    out << fmt::format("{}: {} parameters, {}, batch {}, {} ({} cores)\n{}\n", options.model,
                       count_text(model.parameter_count()), optimizer.name(), batch, device->name(),
                       device->cores().size(), data.description);
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
  const History history = model.fit(data.train(batch, options.seed), fit);

  report(out, history, folder);
  if (!options.trace.empty()) write_trace(model.recorder(), options.trace);
  write_json(result_json(options, *device, batch, history, folder.checkpoint().string()),
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
  app->add_option("--seed", options->seed, "of weights, shuffling and dropout")
      ->capture_default_str();
  app->add_option("--run-dir", options->run_dir, "folder of the run (runs/<date and time>)");
  app->add_option("--resume", options->resume, "a run's folder, or a checkpoint, to go on from");
  app->add_option("--trace", options->trace, "write the last steps as a trace for Perfetto");
  app->add_option("--json", options->json, "write the result to this file (-: here)");
  app->callback([options] { run(*options); });
}

}  // namespace lockstep::cli
