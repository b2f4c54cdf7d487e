// PhaseClock: how much of a run's wall time goes to something other than training: startup,
// validation, checkpoints.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "lockstep/profile/recorder.h"

namespace lockstep {

// Start: tracing, planning, timing algorithms, opening data.
enum class Phase : std::uint8_t { Start, Validation, Checkpoint };
inline constexpr std::size_t kPhases = 3;
inline constexpr std::size_t kSpanKinds = 6;

// One thread opens phases and reads them, while the threads that write the tracks are idle.
class PhaseClock {
 public:
  explicit PhaseClock(std::vector<const Track*> tracks);

  // The wall time of a phase so far, including the open one.
  std::int64_t ns(Phase phase) const;
  std::int64_t ns() const;  // of all phases
  // How much of a track's time of this kind was inside phases; 0 for an unknown track.
  std::int64_t ns(const Track& track, SpanKind kind) const;

 private:
  friend class PhaseScope;
  using Kinds = std::array<std::int64_t, kSpanKinds>;
  static constexpr int kNone = -1;
  static Kinds totals(const Track& track);
  // Ends the open phase, if any, and opens another (or kNone).
  void change_to(int phase);

  std::vector<const Track*> tracks_;
  std::array<std::int64_t, kPhases> wall_ns_ = {};
  std::vector<Kinds> inside_ns_;  // per track
  int open_ = kNone;
  std::int64_t since_ns_ = 0;
  std::vector<Kinds> at_since_;  // per track
};

// Keeps a phase open for as long as it lives. The time of a nested phase does not count for the
// outer one.
class PhaseScope {
 public:
  PhaseScope(PhaseClock& clock, Phase phase) : clock_(clock), outer_(clock.open_) {
    clock_.change_to(static_cast<int>(phase));
  }
  ~PhaseScope() { clock_.change_to(outer_); }
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  PhaseClock& clock_;
  int outer_;
};

}  // namespace lockstep
