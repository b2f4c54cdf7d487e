// History: what a call of fit did: the logs of every epoch, how long the steps took, and where the
// time went.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/data/report.h"
#include "lockstep/explain/noise_scale.h"
#include "lockstep/train/logs.h"
#include "lockstep/train/straggler.h"

namespace lockstep {

struct RunProfile;   // explain/run_profile.h
struct Explanation;  // explain/explanation.h

// Fractions of the wall time; they add up to 1. The first five are the time of training steps; host
// is the rest of it: callbacks and gaps between kernels.
struct Attribution {
  double compute = 0;
  double communication = 0;
  double input = 0;
  double wait = 0;
  double host = 0;
  double start = 0;  // before the first step: tracing, planning, autotuning, opening data; also
                     // planning for batches of another shape later on
  double validation = 0;
  double checkpoint = 0;

  // Adds `other`, multiplied by `times`.
  void add(const Attribution& other, double times);
};

using AttributionParts = std::array<std::pair<const char*, double>, 8>;
// Names and values, in the order above.
AttributionParts parts_of(const Attribution& attribution);

// "compute 96%, wait 3%": all that are at least one percent.
std::string summary(const Attribution& attribution);

// Where the time of one replica went.
struct ReplicaTime {
  std::string device;
  Attribution attribution;
  std::int64_t samples = 0;
};

// Time spent in the nodes of one name over the last steps (as many as the recorder holds).
struct OpTime {
  std::string name;
  double seconds = 0;
  double share = 0;  // of the compute time of these steps
};

struct EpochLog {
  std::int64_t epoch = 0;  // from 0
  Logs logs;               // loss, metrics, val_…, lr, seconds, samples_per_s
};

// A worker failed, and the others went on.
struct Recovery {
  std::string cause;            // "worker 1 (host:pid 4711) has ended"
  std::int64_t step = 0;        // at which they went on, counted from the beginning of training
  std::int64_t lost_steps = 0;  // that were trained once more
  double seconds = 0;           // from the failure to the first step after it
  int workers = 1;              // that went on
};

struct ReportOptions {
  // Written for the user of the command-line program: names its flags, not C++ options.
  bool program = false;
  // Of the run, where more is known than its profile: what one device does alone.
  const Explanation* explanation = nullptr;
};

struct History {
  std::vector<EpochLog> epochs;
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  double seconds = 0;           // the whole call, including validation
  double callback_seconds = 0;  // part of host; without saving and validating in callbacks
  // One entry per training step, including input; steps that first had to be planned are left out.
  std::vector<float> step_ms;
  std::int64_t planned = 0;    // training steps that first had to be planned
  std::size_t peak_bytes = 0;  // allocated on a replica's device; the largest of all
  Attribution attribution;     // the mean over the replicas
  std::vector<ReplicaTime> replicas;
  bool balanced = false;                 // whether pieces were sized by the replicas' speed
  std::vector<SlowWorker> slow_workers;  // that the others waited for, by worker
  std::vector<OpTime> top_ops;           // of the first replica, slowest first
  std::optional<PipelineReport> input;   // of the last pass over the training data
  std::int64_t skipped = 0;              // elements skipped because of errors, over all passes
  // The first step whose loss was not finite, counted from the beginning of training.
  std::optional<std::int64_t> first_non_finite_step;
  std::string failure;               // why on_nan ended training; empty if it did not
  std::int64_t restores = 0;         // how often on_nan went back to a good state
  bool interrupted = false;          // ended by FitOptions::interrupted
  std::vector<Recovery> recoveries;  // from failures of workers
  // What was recorded about the time of all workers' steps.
  std::shared_ptr<const RunProfile> profile;
  // This worker came when the others had done this call: it has only their epochs.
  bool handed_over = false;

  // In "mixed_float16": steps that were skipped because a gradient was not finite, and the loss
  // scale after the last step.
  std::int64_t overflowed_steps = 0;
  std::optional<double> loss_scale;

  // The gradient noise scale over the last sampled steps, in samples, if enough were sampled, and
  // what measuring it took (FitOptions::noise_scale_every).
  std::optional<NoiseScale> noise_scale;
  double noise_scale_seconds = 0;
  std::int64_t batch_size = 0;  // global; of the largest batch
  // That a replica's piece of the largest batch was divided into: their gradients were added up
  // before they were reduced (CompileOptions::accumulate).
  std::int64_t micro_batches = 1;
  std::string optimizer;  // its name: "adam"

  // One value per epoch: history.series("val_loss"). NaN for an epoch that ended before it was
  // known; UsageError if no epoch has it.
  std::vector<double> series(std::string_view name) const;
  double median_step_ms() const;
  double p99_step_ms() const;
  // A text for people: where the time went and what to do about it.
  std::string report(const ReportOptions& options = {}) const;
};

}  // namespace lockstep
