// Survival: what a call of fit keeps so that it goes on when a worker fails. Every worker has a
// copy of the state of the run in its own memory, taken after the same step on all of them, with
// the input positions of all. After a failure the workers that are left, and those that came
// instead, go on from the newest copy that all of the former have; the latter receive it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/attribution_meter.h"
#include "lockstep/train/model_impl.h"

namespace lockstep {

class Survival {
 public:
  // `every`: FitOptions::copy_state_every.
  Survival(ModelImpl& impl, std::int64_t every);

  // Whether a copy is due before the next step.
  bool due() const;
  // Copies the state, of which `where` is the position; then workers that came meanwhile may take
  // part (World::admit_newcomers). Collective.
  void keep(const Progress& where, const History& history);

  // Where this fit begins: agrees with the other workers on a copy to go on from. Collective.
  // Returns false if there is none: nobody has begun yet.
  bool meet();
  // Sets the state of that copy, and returns the position; `accept` may throw to reject it.
  Progress restore(const std::function<void(const Progress&)>& accept);
  // What is known of the time before it.
  History history() const;

  // A worker has failed. Drops what belongs to the old generation, and meets the next one.
  void renew(const History& so_far);
  // The first step after that is done.
  void note_step(History& history);

  const AttributionMeter& meter() const { return meter_; }

 private:
  struct Copy {
    std::int64_t step = 0;
    std::string bytes;  // a checkpoint
    // Of this worker's history.
    std::int64_t steps = 0;
    std::int64_t samples = 0;
    std::size_t epochs = 0;
  };
  std::int64_t next_interval(std::int64_t copy_ns) const;

  ModelImpl& impl_;
  std::int64_t every_;
  AttributionMeter meter_;
  std::deque<Copy> copies_;  // the oldest first
  std::int64_t next_ = 0;    // the step before which the next one is taken
  std::int64_t kept_ns_ = 0;
  std::int64_t kept_step_ = 0;
  History before_;  // until the last failure
  std::optional<Recovery> recovery_;
  std::int64_t failed_ns_ = 0;
};

}  // namespace lockstep
