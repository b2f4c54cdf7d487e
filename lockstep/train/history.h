// History: what a call of fit did. The logs of every epoch, how long its steps took, and where the
// time went.
#pragma once

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
  Attribution attribution;
  std::vector<OpTime> top_ops;          // the slowest first
  std::optional<PipelineReport> input;  // of the last pass over the training data
  std::int64_t skipped = 0;             // elements passed over because of errors, in all passes
  // The first step, counted from the beginning of training, whose loss was not a finite number.
  std::optional<std::int64_t> first_non_finite_step;

  // A number over the epochs: history.series("val_loss").
  std::vector<double> series(std::string_view name) const;
  double median_step_ms() const;
  double p99_step_ms() const;
  // Where the time went and what to do about it, for people.
  std::string report() const;
};

// Attribution of a stretch of wall time on one track: construct at its beginning, read at its end.
class AttributionMeter {
 public:
  explicit AttributionMeter(const Track& track);
  double seconds() const;
  Attribution read() const;

 private:
  const Track& track_;
  std::int64_t begin_ns_;
  std::int64_t before_ns_[6];
};

// The nodes that took longest among the spans that a track still holds.
std::vector<OpTime> slowest_ops(const Track& track, std::size_t count);

}  // namespace lockstep
