// SumClock: how long a device that runs behind the host stood still for sums over replicas.
//
// A plan's sums run beside the backward pass, on the communication stream. What costs time of them
// is what the compute stream waits for: the part of its waiting during which a sum is under way,
// and sums of its own (synchronised batch norm). Both are stamped with the device's time, as parts
// of the recorded step.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/device/device.h"
#include "lockstep/profile/recorder.h"

namespace lockstep {

class SumClock {
 public:
  static constexpr std::size_t kTurns = 2;  // recordings, each with stamps of its own

  // At most so many sums and waits in a step. Spans of sums go to the track.
  SumClock(Device& device, std::size_t most, Track& track);

  // From here on the steps of this turn are issued; behind end() they all have been.
  void begin(std::size_t turn);
  void end(Stream& compute);
  // A sum that `stream` runs. `exposed`: nothing runs beside it.
  void sum(Stream& stream, bool exposed, const char* name, const auto& issue) {
    stamped(stream, exposed ? Kind::ExposedSum : Kind::Sum, name, issue);
  }
  // What makes the compute stream wait for the communication stream.
  void wait(Stream& compute, const auto& issue) { stamped(compute, Kind::Wait, "", issue); }

  // Brings the last run of this turn, which is over, to account: spans of its sums, and the
  // nanoseconds that it stood still for them. Its end was at `end_ns` of the host's clock.
  std::int64_t account(std::size_t turn, std::int64_t end_ns);

 private:
  enum class Kind { Sum, ExposedSum, Wait };
  struct Interval {
    Kind kind;
    const char* name;
    std::size_t stamp;  // of its begin; that of its end is the next
  };

  void stamped(Stream& stream, Kind kind, const char* name, const auto& issue) {
    const Interval interval{kind, name, used_};
    stream.stamp(next_stamp());
    issue();
    stream.stamp(next_stamp());
    turns_[turn_].push_back(interval);
  }
  std::int64_t* next_stamp();

  std::shared_ptr<Buffer> memory_;  // of the host: the stamps of all turns
  std::size_t of_turn_;             // of them, the end's first
  Track& track_;
  std::size_t turn_ = 0;
  std::size_t used_ = 0;  // of this turn's
  std::array<std::vector<Interval>, kTurns> turns_;
};

}  // namespace lockstep
