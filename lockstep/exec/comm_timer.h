// CommTimer: how long an asynchronous device was stalled by collectives.
//
// A plan's collectives overlap the backward pass, on the communication stream. Only the time the
// compute stream waits for a collective counts as communication: the part of its waits during which
// a collective runs, and collectives on the compute stream itself (synchronised batch norm). Both
// are timestamped by the device, as parts of the recorded step.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/device/device.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {

class CommTimer {
 public:
  static constexpr std::size_t kTurns = 2;  // recordings, each with its own timestamps

  // The most collectives and waits that a step may have. Spans of collectives go to the track.
  CommTimer(Device& device, std::size_t most, Track& track);

  // begin() before the instructions of this turn are issued, end() after all of them have been.
  void begin(std::size_t turn);
  void end(Stream& compute);
  // A collective that `stream` runs. `exposed`: nothing overlaps it.
  void collective(Stream& stream, bool exposed, const char* name, const auto& issue) {
    stamped(stream, exposed ? Kind::ExposedCollective : Kind::Collective, name, issue);
  }
  // What makes the compute stream wait for the communication stream.
  void wait(Stream& compute, const auto& issue) { stamped(compute, Kind::Wait, "", issue); }

  // Accounts for the last run of this turn, which must be over: records the spans of its
  // collectives, and returns the nanoseconds that it was stalled by them. It ended at `end_ns` of
  // the host's clock.
  std::int64_t account(std::size_t turn, std::int64_t end_ns);

 private:
  enum class Kind { Collective, ExposedCollective, Wait };
  struct Interval {
    Kind kind;
    const char* name;
    std::size_t stamp;  // index of its start's timestamp; that of its end is the next
  };

  void stamped(Stream& stream, Kind kind, const char* name, const auto& issue) {
    const Interval interval{kind, name, used_};
    stream.stamp(next_stamp());
    issue();
    stream.stamp(next_stamp());
    turns_[turn_].push_back(interval);
  }
  std::int64_t* next_stamp();

  std::shared_ptr<Buffer> memory_;  // host memory: the timestamps of all turns
  std::size_t of_turn_;             // timestamps per turn, that of the end first
  Track& track_;
  std::size_t turn_ = 0;
  std::size_t used_ = 0;  // timestamps of this turn
  std::array<std::vector<Interval>, kTurns> turns_;
};

}  // namespace lockstep
