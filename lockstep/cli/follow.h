// Following a run: whenever it has saved a checkpoint, its loss and metrics on test samples. The
// process that does so is no worker of the job: an evaluator. It only reads the run's folder,
// except that it adds a line to evaluation.csv for each checkpoint.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "lockstep/cli/command.h"
#include "lockstep/cli/train_options.h"
#include "lockstep/train/logs.h"

namespace lockstep::cli {

inline constexpr const char* kEvaluationFile = "evaluation.csv";

struct FollowOptions {
  std::string run;            // its folder, which may not exist yet
  std::string data = {};      // other samples; empty: the run's own test data
  std::string own_data = {};  // where the run's data is on this host; empty: as its record says
  Placement placement = {};
  std::int64_t batch = 64;
  // How long to wait for the run and for each new checkpoint; 0: forever.
  std::chrono::seconds timeout{0};
  // The run is about to be resumed: that it has ended before does not count.
  bool resumes = false;
  std::string json = {};  // where the result goes
};

// Returns when the run has ended and its last checkpoint is evaluated. If checkpoints come faster
// than they are evaluated, some are left out, but never the last one. One that cannot be read is a
// warning. A run that was killed has not ended: it may be resumed. Throws Interrupted after a
// signal, and UsageError after the timeout.
void follow_run(const FollowOptions& options);

// What `lockstep train` does in a process that was started as an evaluator: it gets the flags of
// the workers. UsageError if they do not name the run's folder.
void follow_run_of(const TrainOptions& options);

// "loss 0.3142, accuracy 0.8750"
std::string logs_text(const Logs& logs);
// All but the loss.
Json metrics_json(const Logs& logs);

}  // namespace lockstep::cli
