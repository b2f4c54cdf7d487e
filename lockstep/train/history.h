// History: what a call of fit did. The logs of every epoch, how long its steps took, and where the
// time went.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/data/report.h"
#include "lockstep/profile/phase_clock.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/train/logs.h"

namespace lockstep {

// Fractions of the wall time; they add up to 1. The first five are of training steps; host is what
// is left over: callbacks, and what lies between the kernels.
struct Attribution {
  double compute = 0;
  double communication = 0;
  double input = 0;
  double wait = 0;
  double host = 0;
  double start = 0;  // until the first step: tracing, planning, measuring algorithms, opening data;
                     // and planning of batches of another shape later on
  double validation = 0;
  double checkpoint = 0;

  // Adds `times` another one.
  void add(const Attribution& other, double times);
};

using AttributionParts = std::array<std::pair<const char*, double>, 8>;
// By name, in the order above.
AttributionParts parts_of(const Attribution& attribution);

// "compute 96%, wait 3%": the parts that are at least one percent.
std::string summary(const Attribution& attribution);

// Where the time of one replica went.
struct ReplicaTime {
  std::string device;
  Attribution attribution;
  std::int64_t samples = 0;
};

// Time spent in the nodes of one name, over the last steps (as many as the recorder holds).
struct OpTime {
  std::string name;
  double seconds = 0;
  double share = 0;  // of the compute time of these steps
};

struct EpochLog {
  std::int64_t epoch = 0;  // from 0
  Logs logs;               // loss, metrics, val_…, lr, seconds, samples_per_s
};

struct ReportOptions {
  // Speaks to somebody who runs the program: of its flags, not of C++.
  bool program = false;
};

struct History {
  std::vector<EpochLog> epochs;
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  double seconds = 0;           // of the whole call, validation included
  double callback_seconds = 0;  // of the host's time; without saving and validating in callbacks
  // One entry a training step, input included; steps that first had to be planned are left out.
  std::vector<float> step_ms;
  std::int64_t planned = 0;    // training steps that first had to be planned
  std::size_t peak_bytes = 0;  // of the training plan
  Attribution attribution;     // the mean over the replicas
  std::vector<ReplicaTime> replicas;
  bool balanced = false;                // whether pieces followed the replicas' speeds
  std::vector<OpTime> top_ops;          // of the first replica, the slowest first
  std::optional<PipelineReport> input;  // of the last pass over the training data
  std::int64_t skipped = 0;             // elements passed over because of errors, in all passes
  // The first step, counted from the beginning of training, whose loss was not a finite number.
  std::optional<std::int64_t> first_non_finite_step;
  std::string failure;        // why on_nan ended training; empty: it did not
  std::int64_t restores = 0;  // how often on_nan went back to a good state
  bool interrupted = false;   // FitOptions::interrupted ended it

  // In "mixed_float16": steps that changed nothing because a gradient was not finite, and the loss
  // scale behind the last step.
  std::int64_t overflowed_steps = 0;
  std::optional<double> loss_scale;

  // A number over the epochs: history.series("val_loss"). NaN for an epoch that ended before it was
  // known; UsageError where none has it.
  std::vector<double> series(std::string_view name) const;
  double median_step_ms() const;
  double p99_step_ms() const;
  // Where the time went and what to do about it, for people.
  std::string report(const ReportOptions& options = {}) const;
};

// Attribution of a stretch of wall time: construct at its beginning, read at its end. What the host
// does between the replicas' steps (input, callbacks) is time of every replica, and so is a phase:
// what replicas do within one is not counted as a part of training.
class AttributionMeter {
 public:
  // `host` may be a replica's own track, where the host runs it.
  AttributionMeter(std::vector<const Track*> replicas, const Track& host, const PhaseClock& phases);
  double seconds() const;
  std::vector<Attribution> by_replica() const;
  Attribution read() const;  // their mean

 private:
  struct Begun {
    const Track* track;
    std::array<std::int64_t, kSpanKinds> before_ns;
  };
  Begun begun(const Track& track) const;
  // Time of a kind, outside of phases.
  std::int64_t training_ns(const Track& track, SpanKind kind) const;
  std::int64_t since_ns(const Begun& begun, SpanKind kind) const;

  const PhaseClock& phases_;
  std::array<std::int64_t, kPhases> phases_before_ns_;
  std::vector<Begun> replicas_;
  Begun host_;
  std::int64_t begin_ns_;
};

// The nodes that took longest among the spans that a track still holds.
std::vector<OpTime> slowest_ops(const Track& track, std::size_t count);

}  // namespace lockstep
