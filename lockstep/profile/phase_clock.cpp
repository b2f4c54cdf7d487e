#include "lockstep/profile/phase_clock.h"

#include <algorithm>
#include <numeric>

namespace lockstep {

PhaseClock::PhaseClock(std::vector<const Track*> tracks)
    : tracks_(std::move(tracks)), inside_ns_(tracks_.size()), at_since_(tracks_.size()) {}

PhaseClock::Kinds PhaseClock::totals(const Track& track) {
  Kinds kinds = {};
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    kinds[kind] = track.total_ns(static_cast<SpanKind>(kind));
  }
  return kinds;
}

void PhaseClock::change_to(int phase) {
  const std::int64_t now = now_ns();
  for (std::size_t i = 0; i < tracks_.size(); ++i) {
    const Kinds here = totals(*tracks_[i]);
    for (std::size_t kind = 0; open_ != kNone && kind < here.size(); ++kind) {
      inside_ns_[i][kind] += here[kind] - at_since_[i][kind];
    }
    at_since_[i] = here;
  }
  if (open_ != kNone) wall_ns_[static_cast<std::size_t>(open_)] += now - since_ns_;
  since_ns_ = now;
  open_ = phase;
}

std::int64_t PhaseClock::ns(Phase phase) const {
  const std::int64_t running = open_ == static_cast<int>(phase) ? now_ns() - since_ns_ : 0;
  return wall_ns_[static_cast<std::size_t>(phase)] + running;
}

std::int64_t PhaseClock::ns() const {
  const std::int64_t running = open_ != kNone ? now_ns() - since_ns_ : 0;
  return std::accumulate(wall_ns_.begin(), wall_ns_.end(), running);
}

std::int64_t PhaseClock::ns(const Track& track, SpanKind kind) const {
  const auto found = std::ranges::find(tracks_, &track);
  if (found == tracks_.end()) return 0;
  const auto i = static_cast<std::size_t>(found - tracks_.begin());
  const auto k = static_cast<std::size_t>(kind);
  const std::int64_t running = open_ != kNone ? track.total_ns(kind) - at_since_[i][k] : 0;
  return inside_ns_[i][k] + running;
}

}  // namespace lockstep
