// train_many: separate models on separate devices at the same time. A sweep, an ensemble, k folds.
//
//   std::vector<ls::TrainJob> jobs;
//   for (double rate : {0.1, 0.01, 0.001}) {
//     ls::Model model = make_model();
//     model.compile({.optimizer = ls::SGD({.learning_rate = rate}), .loss = …});
//     jobs.push_back({.name = fmt::format("rate {}", rate),
//                     .model = model,
//                     .batches = batches,
//                     .fit = {.epochs = 5}});
//   }
//   std::cout << ls::table(ls::train_many(jobs, {.progress = &std::cerr}));
#pragma once

#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/train/history.h"
#include "lockstep/train/model.h"

namespace lockstep {

struct TrainJob {
  std::string name = {};  // empty: "model 1", by its place among the jobs
  // Compiled, without a strategy or a device. It shares no layer and no optimizer with other jobs.
  Model model;
  // May be that of other jobs too; functions of the user's own in it are then called by several
  // threads at once.
  Dataset batches;
  FitOptions fit = {};
};

struct TrainManyOptions {
  // "cpu:0", "cpu:1": each trains one model at a time. None: a logical CPU for each core that the
  // process may use, but no more than there are jobs.
  std::vector<std::string> devices = {};
  // Into how many logical devices the cores are split; 0: as the names need.
  int logical_cpus = 0;
  // How the jobs stand, written by the thread that calls; null: nothing is written. On a terminal
  // the jobs that run are shown in place, five times a second at most; elsewhere a job gets a line
  // when it begins and a line when it ends.
  std::ostream* progress = nullptr;
  bool terminal = false;
};

struct TrainResult {
  std::string name;
  std::string device;
  std::optional<History> history = {};  // none where it failed
  std::string error = {};               // what it failed with; empty: it went well
  double seconds = 0;                   // on its device, from beginning to end
};

// Fits every model as Model::fit does, with the same bits as alone on such a device, and gives the
// results in the order of the jobs. A device takes the next job when it is done with one. A job
// that fails is named in its result and leaves the others alone. UsageError, before anything is
// trained, for jobs that cannot be trained side by side.
//
// A model stays where it was trained, with its values, until it is compiled again: evaluate,
// predict and further training run there.
std::vector<TrainResult> train_many(std::vector<TrainJob> jobs,
                                    const TrainManyOptions& options = {});

// The results, a line each: name, device, epochs, the last epoch's loss and metrics, its samples a
// second, and the seconds it all took; or the error.
std::string table(std::span<const TrainResult> results);

}  // namespace lockstep
