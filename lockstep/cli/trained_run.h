// A run that was trained, opened to be used: its model with the weights of a checkpoint, and what
// its record says of samples and classes.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/cli/command.h"
#include "lockstep/cli/train_options.h"
#include "lockstep/cli/zoo.h"
#include "lockstep/data/image/reader.h"
#include "lockstep/train/model.h"

namespace lockstep::cli {

struct TrainedRun {
  std::filesystem::path folder;
  std::filesystem::path checkpoint;
  Json record;
  TrainOptions options;  // as the run had them
  Task task;
  std::vector<std::string> class_names;  // by label
  Model model;                           // compiled, with the weights of the checkpoint
};

struct OpenRunOptions {
  std::string run;           // a run's folder, or a checkpoint in it
  Placement placement = {};  // where to compute; the run's precision holds
};

// UsageError where there is no such run, or it is not finished enough to have a checkpoint;
// DataError where its record or checkpoint cannot be read.
TrainedRun open_run(const OpenRunOptions& options);

// How the run reads pictures to test on. UsageError where its samples are not pictures.
ImageReaderOptions testing_reader(const TrainedRun& run);

}  // namespace lockstep::cli
