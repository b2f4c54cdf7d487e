// lockstep evaluate: loss and metrics of a trained run, on its test data or on other samples; with
// --follow, of every checkpoint of a run that is being trained.
#include <fmt/core.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/cli/command.h"
#include "lockstep/cli/follow.h"
#include "lockstep/cli/number.h"
#include "lockstep/cli/test_data.h"
#include "lockstep/cli/trained_run.h"

namespace lockstep::cli {
namespace {

struct EvaluateOptions {
  std::string run;
  std::string data;
  Placement placement;
  std::int64_t batch = 64;
  bool follow = false;
  std::int64_t timeout = 0;  // seconds
  std::string json;
};

void run_once(const EvaluateOptions& options) {
  TrainedRun trained = open_run({.run = options.run, .placement = options.placement});
  const TestData data = test_data(trained, {.data = options.data, .batch = options.batch});
  const Logs logs = trained.model.evaluate(data.batches, {.verbose = 0});
  if (!is_standard_output(options.json)) {
    fmt::print("{} on {}\n{}\n", trained.checkpoint.string(), data.where, logs_text(logs));
  }
  write_json({{"loss", logs.at("loss")},
              {"metrics", metrics_json(logs)},
              {"samples", data.samples},
              {"checkpoint", trained.checkpoint.string()}},
             options.json);
}

void run(const EvaluateOptions& options) {
  check_target("--json", options.json);
  require(options.follow || options.timeout == 0,
          "--timeout {}: it is for --follow, which waits for checkpoints", options.timeout);
  if (!options.follow) return run_once(options);
  follow_run({.run = options.run,
              .data = options.data,
              .placement = options.placement,
              .batch = options.batch,
              .timeout = std::chrono::seconds(options.timeout),
              .json = options.json});
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
  app.add_flag(
      "--follow", options->follow,
      "measure every new checkpoint until the run ends; writes evaluation.csv beside them");
  app.add_option("--timeout", options->timeout,
                 "with --follow: give up after so many seconds without a new checkpoint (never)")
      .check(whole_number(1, 100'000'000));
  app.add_option("--json", options->json, "write the result to this file (-: standard output)");
  app.callback([options] { run(*options); });
}

}  // namespace lockstep::cli
