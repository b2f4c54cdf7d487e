// lockstep evaluate: loss and metrics of a trained run, on its test data or on other samples.
#include <fmt/core.h>

#include "lockstep/base/error.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/data_source.h"
#include "lockstep/cli/format.h"
#include "lockstep/cli/number.h"
#include "lockstep/cli/run_record.h"
#include "lockstep/cli/trained_run.h"
#include "lockstep/data/image_directory.h"

namespace lockstep::cli {
namespace {

struct EvaluateOptions {
  std::string run;
  std::string data;
  Placement placement;
  std::int64_t batch = 64;
  std::string json;
};

struct TestData {
  Dataset batches;
  std::int64_t samples = 0;
  std::string where;
};

// A folder of pictures is used as a whole, without a split into training and test samples.
TestData whole_folder(const TrainedRun& run, const std::string& folder, std::int64_t batch) {
  ImageReaderOptions reader = testing_reader(run);
  ImageDirectoryOptions how{.known_classes = run.class_names,
                            .color_mode = reader.color_mode,
                            .batch_size = batch,
                            .height = reader.height,
                            .width = reader.width,
                            .shuffle = false,
                            .reader = reader};
  const ImageDirectory images = image_dataset_from_directory(folder, how);
  return {
      .batches = images.dataset,
      .samples = std::ssize(images.files),
      .where = fmt::format("the {} pictures in {}", count_text(std::ssize(images.files)), folder)};
}

TestData test_data(const TrainedRun& run, const EvaluateOptions& options) {
  const std::string& data = options.data.empty() ? run.options.data : options.data;
  if (!options.data.empty() && data != "synthetic" && is_image_directory(data)) {
    return whole_folder(run, data, options.batch);
  }
  const DataSource source = open_data(
      {.data = data,
       .task = run.task,
       .samples = record_part(run.record, "data", run.folder).value("train_samples", 1024),
       .seed = run.options.seed,
       .image_size = run.options.image_size.empty()
                         ? std::nullopt
                         : std::optional(image_size_by_text(run.options.image_size))});
  require(source.task.sample == run.task.sample && source.task.classes <= run.task.classes,
          "--data {}: its samples have shape {} and {} classes; the run was trained on {} and {}",
          data, source.task.sample, source.task.classes, run.task.sample, run.task.classes);
  return {.batches = source.test(options.batch),
          .samples = source.test_samples,
          .where = fmt::format("the {} test samples of {}", count_text(source.test_samples),
                               data.empty() ? "fashion-mnist" : data)};
}

void run(const EvaluateOptions& options) {
  check_target("--json", options.json);
  TrainedRun trained = open_run({.run = options.run, .placement = options.placement});
  const TestData data = test_data(trained, options);
  const Logs logs = trained.model.evaluate(data.batches, {.verbose = 0});
  Json metrics = Json::object();
  std::string text;
  for (const auto& [name, value] : logs.items()) {
    text += fmt::format("{}{} {:.4f}", text.empty() ? "" : ", ", name, value);
    if (name != "loss") metrics[name] = value;
  }
  if (!is_standard_output(options.json)) {
    fmt::print("{} on {}\n{}\n", trained.checkpoint.string(), data.where, text);
  }
  write_json({{"loss", logs.at("loss")},
              {"metrics", std::move(metrics)},
              {"samples", data.samples},
              {"checkpoint", trained.checkpoint.string()}},
             options.json);
}

}  // namespace

void add_evaluate(Program& program) {
  Command app = program.add_command("evaluate", "Measures a trained run on test samples.");
  auto options = std::make_shared<EvaluateOptions>();
  app.add_option("run", options->run, "a run's folder (runs/last), or a checkpoint in it")
      .required();
  app.add_option("--data", options->data, "a folder of other samples (the run's own test data)");
  add_placement(app, options->placement);
  app.add_option("--batch", options->batch, "samples per batch")
      .capture_default_str()
      .check(whole_number(1, 1'000'000));
  app.add_option("--json", options->json, "write the result to this file (-: standard output)");
  app.callback([options] { run(*options); });
}

}  // namespace lockstep::cli
