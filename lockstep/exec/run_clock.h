// RunClock: when the runs of a plan took place on an asynchronous device, by the host's clock.
//
// The device's events tell how long it took from one to the next; where the host blocked on one, it
// knows when that was. The time of a run is then the device's, and what the host did meanwhile
// (input, waiting for other replicas) is discounted, since it cost no time: only what stalled the
// device remains.
#pragma once

#include <cstdint>

#include "lockstep/device/device.h"
#include "lockstep/exec/comm_timer.h"
#include "lockstep/exec/runner.h"

namespace lockstep {

class RunClock {
 public:
  // The options must have a recorder. `last_end_of_rank`: when the last run of any plan of this
  // rank ended; the plans of a rank run one after another. Null: this is its only plan.
  explicit RunClock(const ExecutorOptions& options, std::int64_t* last_end_of_rank = nullptr);

  // What is known of a run that is over. Events are timed.
  struct Run {
    std::int64_t issued_ns = 0;
    Event* copied = nullptr;  // its inputs; null if it had none to copy
    Event* done = nullptr;
    Event* done_before = nullptr;      // the run before it; null for the first
    std::int64_t seen_ns = 0;          // when the host knew that it is over
    bool awaited = false;              // the host blocked until then
    CommTimer* collectives = nullptr;  // null if there are none
    std::size_t turn = 0;              // its turn of `collectives`
  };
  void ended(const Run& run);

  // What the calling thread did since then.
  void launched(std::int64_t since_ns);
  void waited(std::int64_t since_ns);

 private:
  void take_back(std::int64_t begin_ns, std::int64_t end_ns);

  Track& track_;
  Track* host_;  // if it is a different one
  Track& device_track_;
  std::int64_t last_end_ns_ = 0;  // of this plan
  std::int64_t* last_end_of_rank_;
};

}  // namespace lockstep
