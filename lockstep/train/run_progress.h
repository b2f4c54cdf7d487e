// RunProgress: how far a run has come, for those who watch it while it goes on: a file in its
// folder, a server of metrics. RunProgressReporter is the callback that collects and hands it on.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/explain/learning.h"
#include "lockstep/train/callback.h"
#include "lockstep/train/history.h"

namespace lockstep {

// How many steps took how long.
struct StepHistogram {
  // Upper limits of the buckets, in seconds; longer steps are in the last one.
  static constexpr std::array<double, 18> kLimits = {1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3,
                                                     0.01, 0.025,  0.05, 0.1,  0.25,   0.5,
                                                     1,    2.5,    5,    10,   25,     50};
  std::array<std::int64_t, kLimits.size() + 1> counts = {};
  double sum_s = 0;

  void add(double seconds);
  std::int64_t count() const;
};

struct RunProgress {
  std::int64_t step = 0;   // from the beginning of training
  std::int64_t epoch = 0;  // from 0
  std::int64_t epochs = 1;
  std::int64_t epoch_step = 0;                       // done
  std::optional<std::int64_t> steps_per_epoch = {};  // if known
  std::int64_t steps = 0;                            // of this call
  std::int64_t samples = 0;                          // of this call
  double seconds = 0;                                // since it began
  std::optional<double> loss = {};                   // of the last step
  double step_s = 0;                                 // mean since the report before
  double samples_per_s = 0;                          // the same
  Logs logs = {};                                    // of the last epoch that ended
  Attribution attribution = {};                      // since it began, mean over the replicas here
  std::vector<std::string> devices = {};             // of all replicas
  int workers = 1;
  std::size_t memory_bytes = 0;  // on the device that has most
  std::int64_t batch = 0;        // global, of the last step
  std::optional<NoiseScale> noise = {};
  std::string slow;           // who keeps the others waiting, and how long; empty: nobody
  std::int64_t failures = 0;  // of workers, after which training went on
  std::int64_t warnings = 0;
  std::string last_warning;
  StepHistogram step_seconds = {};
  std::vector<LossPoint> losses = {};
  bool ended = false;
};

struct RunProgressOptions {
  // Called on the thread of fit, on the chief alone: when training begins, at this interval, after
  // each epoch, and when it ends. What it throws ends training.
  std::function<void(const RunProgress&)> report;
  std::chrono::nanoseconds every = std::chrono::seconds(1);
};
// Reports are further apart where they take long, so that they cost less than 1% of the time.
CallbackRef RunProgressReporter(RunProgressOptions options);

}  // namespace lockstep
