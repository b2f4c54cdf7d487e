// AttributionMeter: where the time of an interval went, read from the tracks of the ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/profile/phase_clock.h"
#include "lockstep/profile/recorder.h"
#include "lockstep/train/history.h"

namespace lockstep {

// Attribution of an interval of wall time: construct it at the beginning, read it at the end. What
// the host does between the replicas' steps (input, callbacks) counts for every replica, and so
// does a phase; what replicas do during a phase does not count as training.
class AttributionMeter {
 public:
  // `host` may be a replica's track, if the host runs that replica.
  AttributionMeter(std::vector<const Track*> replicas, const Track& host, const PhaseClock& phases);
  double seconds() const;
  std::vector<Attribution> by_replica() const;
  Attribution read() const;  // their mean

 private:
  struct Begin {
    const Track* track;
    std::array<std::int64_t, kSpanKinds> before_ns;
  };
  Begin begin_of(const Track& track) const;
  // Time of one kind, outside of phases.
  std::int64_t training_ns(const Track& track, SpanKind kind) const;
  std::int64_t since_ns(const Begin& begin, SpanKind kind) const;

  const PhaseClock& phases_;
  std::array<std::int64_t, kPhases> phases_before_ns_;
  std::vector<Begin> replicas_;
  Begin host_;
  std::int64_t begin_ns_;
};

// The slowest nodes among the spans that a track still holds.
std::vector<OpTime> slowest_ops(const Track& track, std::size_t count);

}  // namespace lockstep
