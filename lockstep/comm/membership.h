// Membership: which workers take part in a job, as one of them sees it, and what it hears about the
// others. The cluster room has implementations; the runtime uses them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
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

// What the others do when a worker has failed. Stop: all end with an error. Restart: it is started
// again under its number, by whoever started it, and all go on. Shrink: the others go on.
enum class OnFailure { Stop, Restart, Shrink };

class Membership {
 public:
  virtual ~Membership() = default;
  // This worker's number, and how many there are.
  virtual int worker() const = 0;
  virtual int workers() const = 0;
  // Grows whenever the members change; what belongs to an older one is refused.
  virtual std::uint64_t generation() const = 0;
  // Whether this worker came to a job that others had begun.
  virtual bool came_later() const { return generation() > 1; }
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

  virtual OnFailure policy() const { return OnFailure::Stop; }
  // Whether the job goes on in a next generation after the failure that on_failure has told.
  virtual bool goes_on() const { return false; }
  // How many workers wait to take part.
  virtual int newcomers() const { return 0; }
  // Begins a generation with them; the first worker calls it. All workers then hear of the end of
  // this one, as of a failure of worker -1, and rejoin.
  virtual void admit() {}
  // Waits for the next generation and is a member of it: all of the above is then about that one.
  // CommError after the timeout, or where it has no place for this worker.
  virtual void rejoin(std::chrono::milliseconds /*timeout*/) {
    fail<CommError>("[membership] there is no generation after this one");
  }
  // For what a worker that was taken for dead must not do: true if it still is a member of the
  // newest generation, false if it is not. Where committed() can tell, `value` is recorded in the
  // same step. CommError where nobody answers. From any thread.
  virtual bool commit(const std::string& /*key*/, std::string_view /*value*/) { return true; }
  // What was committed last under a key, by this job or an earlier one. Nothing where there is no
  // record, or no place that outlives the job to keep it in.
  virtual std::optional<std::string> committed(const std::string& /*key*/) { return std::nullopt; }
};

}  // namespace lockstep
