// Membership: which workers take part in a job, as one of them sees it, and what it hears about the
// others. The cluster room has implementations; the runtime uses them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "lockstep/comm/failure.h"
#include "lockstep/comm/store.h"

namespace lockstep {

// What a worker does, for the others to know while they wait for it.
struct WorkerProgress {
  std::uint64_t step = 0;
  bool waiting = false;        // for other workers
  int waiting_for = -1;        // the one whose message it waits for, where that is known
  std::uint64_t messages = 0;  // that have come from others
  std::string activity = {};   // "step 12"; "planning", "validating" and "saving" may take long
};

class Membership {
 public:
  virtual ~Membership() = default;
  // This worker's number, and how many there are.
  virtual int worker() const = 0;
  virtual int workers() const = 0;
  // Grows whenever the members change; what belongs to an older one is refused.
  virtual std::uint64_t generation() const = 0;
  // Of this generation: keys of an older one are not seen.
  virtual Store& store() = 0;
  // The local end of the connection to the store: an address at which other workers reach this one.
  virtual std::string address() const = 0;

  // Calls `f` when a worker of this generation has failed, from a thread of the membership's own:
  // at once if one already has. `Failure::rank` is the worker. An empty function ends this, and
  // returns only when no call of the one before is in progress.
  virtual void on_failure(std::function<void(const Failure&)> f) = 0;
  // Asks `f` before every heartbeat, from a thread of the membership's own; `f` returns at once. An
  // empty function ends this, and returns only when no call of the one before is in progress.
  virtual void on_heartbeat(std::function<WorkerProgress()> /*f*/) {}
  // Tells all workers that this one has failed. Does not wait for them.
  virtual void report_failure(const Failure& failure) = 0;
};

}  // namespace lockstep
