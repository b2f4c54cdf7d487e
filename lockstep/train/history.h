// History: what a call of fit did. The logs of every epoch, how long its steps took, and where the
// time went.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/report.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/train/logs.h"

namespace lockstep {

// Fractions of the wall time; they add up to 1. Host is what is left over: tracing and planning,
// callbacks, and what lies between the kernels.
struct Attribution {
  double compute = 0;
  double communication = 0;
  double input = 0;
  double wait = 0;
  double host = 0;
};

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

struct History {
  std::vector<EpochLog> epochs;
  std::int64_t steps = 0;
  std::int64_t samples = 0;
  double seconds = 0;  // of the whole call, validation included
  // One entry a training step, input included; steps that first had to be planned are left out.
  std::vector<float> step_ms;
  std::size_t peak_bytes = 0;  // of the training plan
  Attribution attribution;     // the mean over the replicas
  std::vector<ReplicaTime> replicas;
  std::vector<OpTime> top_ops;          // of the first replica, the slowest first
  std::optional<PipelineReport> input;  // of the last pass over the training data
  std::int64_t skipped = 0;             // elements passed over because of errors, in all passes
  // The first step, counted from the beginning of training, whose loss was not a finite number.
  std::optional<std::int64_t> first_non_finite_step;

  // In "mixed_float16": steps that changed nothing because a gradient was not finite, and the loss
  // scale behind the last step.
  std::int64_t overflowed_steps = 0;
  std::optional<double> loss_scale;

  // A number over the epochs: history.series("val_loss").
  std::vector<double> series(std::string_view name) const;
  double median_step_ms() const;
  double p99_step_ms() const;
  // Where the time went and what to do about it, for people.
  std::string report() const;
};

// Attribution of a stretch of wall time: construct at its beginning, read at its end. What the host
// does between the replicas' steps (input, callbacks) is time of every replica.
class AttributionMeter {
 public:
  // `host` may be a replica's own track, where the host runs it.
  AttributionMeter(std::vector<const Track*> replicas, const Track& host);
  double seconds() const;
  std::vector<Attribution> by_replica() const;
  Attribution read() const;  // their mean

 private:
  struct Begun {
    const Track* track;
    std::array<std::int64_t, 6> before_ns;
    double share(SpanKind kind, double wall_ns) const;
  };
  static Begun begun(const Track& track);

  std::vector<Begun> replicas_;
  Begun host_;
  std::int64_t begin_ns_;
};

// The nodes that took longest among the spans that a track still holds.
std::vector<OpTime> slowest_ops(const Track& track, std::size_t count);

}  // namespace lockstep
