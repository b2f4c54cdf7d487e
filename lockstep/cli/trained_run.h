// A trained run, opened for use: its model with the weights of a checkpoint, and what its record
// says about samples and classes.
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
  Placement placement = {};  // where to compute; its precision is ignored, the run's is used
};

// UsageError if there is no such run or it has no checkpoint yet; DataError if its record or
// checkpoint cannot be read.
TrainedRun open_run(const OpenRunOptions& options);
// The same without the weights: those of the model are random.
TrainedRun open_untrained(const OpenRunOptions& options);

// How the run reads test pictures. UsageError if its samples are not pictures.
ImageReaderOptions testing_reader(const TrainedRun& run);

}  // namespace lockstep::cli
