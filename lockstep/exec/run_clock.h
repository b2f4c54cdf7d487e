// RunClock: when the runs of a plan were on a device that runs behind the host, by the host's
// clock.
//
// The device's own events say how long it took from one to the next; where the host stood and
// waited for one, it knows when that was. The time of a run is then the device's, and what the host
// did meanwhile (input, waiting for other replicas) is taken back, since it cost no time: what is
// left of it is what the device stood still for.
#pragma once

#include <cstdint>

#include "lockstep/device/device.h"
#include "lockstep/exec/steps.h"
#include "lockstep/exec/sum_clock.h"

namespace lockstep {

class RunClock {
 public:
  // The recorder of the options must be there.
  explicit RunClock(const ExecutorOptions& options);

  // What is known of a run that is over. Events are timed.
  struct Run {
    std::int64_t issued_ns = 0;
    Event* copied = nullptr;  // its inputs; none where it had none to copy
    Event* done = nullptr;
    Event* done_before = nullptr;  // the run before it; none where it is the first
    std::int64_t seen_ns = 0;      // when the host knew that it is over
    bool awaited = false;          // it stood and waited for that
    SumClock* sums = nullptr;      // of sums over replicas, where there are some
    std::size_t turn = 0;          // of which it was
  };
  void ended(const Run& run);

  // What the calling thread did since then.
  void launched(std::int64_t since_ns);
  void waited(std::int64_t since_ns);

 private:
  void take_back(std::int64_t begin_ns, std::int64_t end_ns);

  Track& track_;
  Track* host_;  // where it is another one
  Track& device_track_;
  std::int64_t last_end_ns_ = 0;
};

}  // namespace lockstep
