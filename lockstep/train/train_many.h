// train_many: separate models on separate devices at the same time, for sweeps, ensembles and
// cross-validation.
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
  std::string name = {};  // empty: "model 1", by its position
  // Compiled without a strategy or a device. Must not share layers or optimizers with other jobs.
  Model model;
  // May be shared with other jobs; the user's functions in it are then called by several threads at
  // once.
  Dataset batches;
  FitOptions fit = {};
};

struct TrainManyOptions {
  // "cpu:0", "cpu:1": each trains one model at a time. None: one logical CPU per core that the
  // process may use, but no more than there are jobs.
  std::vector<std::string> devices = {};
  // The number of logical devices that the cores are split into; 0: as many as the names need.
  int logical_cpus = 0;
  // Gets the progress of the jobs, written by the calling thread; null: none. On a terminal the
  // running jobs are redrawn in place, at most five times per second; elsewhere a job gets a line
  // when it begins and another when it ends.
  std::ostream* progress = nullptr;
  bool terminal = false;
};

struct TrainResult {
  std::string name;
  std::string device;
  std::optional<History> history = {};  // none if it failed
  std::string error = {};               // why it failed; empty: it succeeded
  double seconds = 0;                   // from beginning to end
};

// Fits every model as Model::fit does, bit for bit as if it ran alone on such a device, and returns
// the results in the order of the jobs. A device takes the next job when it has finished one. A job
// that fails says so in its result and does not affect the others. UsageError, before any training,
// if the jobs cannot be trained at the same time.
//
// A model stays on the device that trained it until it is compiled again: evaluate, predict and
// further training run there.
std::vector<TrainResult> train_many(std::vector<TrainJob> jobs,
                                    const TrainManyOptions& options = {});

// One line per result: name, device, epochs, the last epoch's loss, metrics and samples per second,
// and the seconds of the whole job; or the error.
std::string table(std::span<const TrainResult> results);

}  // namespace lockstep
