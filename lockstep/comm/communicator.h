// Communicator: one rank's part in the collectives of its group. Every collective is bound to its
// memory once and then run once per step, so that running allocates nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "lockstep/base/dtype.h"
#include "lockstep/base/slice.h"
#include "lockstep/comm/failure.h"
#include "lockstep/device/device.h"

namespace lockstep {

// One collective of one rank. start() begins a round and finish() ends it; in between the memory
// belongs to the group. A rank may have several in flight; all ranks must start the same ones in
// the same order, and a rank finishes them in the order in which it started them.
class Collective {
 public:
  virtual ~Collective() = default;

  // Says that this rank's memory is ready. Does not wait.
  virtual void start() = 0;
  // Makes progress without waiting; true when the round is over for this rank and its memory may be
  // used again.
  virtual bool poll() = 0;
  // Waits until every rank has started this round; the time after that is communication.
  virtual void await_ranks() = 0;
  // Ends the round, waiting if it must. CommError, naming the missing ranks, after the group's
  // timeout; also if the group was aborted or the ranks mean different collectives.
  virtual void finish() = 0;

  // A whole round as work of a stream, for memory of the stream's device. On the CPU it is over
  // when the call returns; on other devices errors show in Communicator::check.
  virtual void issue(Stream& /*stream*/) {
    start();
    finish();
  }
};

// What a communicator promises about the bits of a sum.
enum class SumOrder {
  // Added in the order of the ranks within each worker, then in that of the workers (above 16, in a
  // tree fixed by their number; local/slice_work.h): the same bits for the same ranks of each
  // worker, whatever the buckets and the transport.
  RankOrder,
  Repeatable,  // the same bits on all ranks, and again for the same machines, version and buckets
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // How many collectives a rank may have in flight.
  virtual int max_in_flight() const = 0;
  virtual SumOrder sum_order() const = 0;

  // Each takes the memory that the rounds will use and outlives them. Slices (slice_of) may be
  // uneven or empty.
  //
  // In place: every rank's elements become the sums over the ranks; all hold the same bits.
  virtual std::unique_ptr<Collective> all_reduce(std::span<std::byte> data, DType dtype) = 0;
  // In place: this rank's slice of the data becomes the sum; the rest is undefined.
  virtual std::unique_ptr<Collective> reduce_scatter(std::span<std::byte> data, DType dtype) = 0;
  // In place: every rank provides its own slice; afterwards all have all slices.
  virtual std::unique_ptr<Collective> all_gather(std::span<std::byte> data, DType dtype) = 0;
  // Afterwards all have what `root` had.
  virtual std::unique_ptr<Collective> broadcast(std::span<std::byte> data, int root) = 0;

  // Makes every rank of the group that waits, now or later, throw a CommError with the failure's
  // message.
  virtual void abort(const Failure& failure) = 0;
  // CommError if a round that was issued to a stream failed. A rank that waits for a stream polls
  // this.
  virtual void check() {}
  // How long such a round may take before the waiting rank gives up on the others; zero: the round
  // has a timeout of its own.
  virtual std::chrono::milliseconds timeout() const { return std::chrono::milliseconds(0); }
  // Whether all ranks are on one device, and wait for one another there: a step must then be one
  // chain, since branches need several of the device's queues, which are few.
  virtual bool on_one_device() const { return false; }
  // Changes with every reset after which rounds that were recorded can no longer be used.
  virtual std::uint64_t generation() const { return 0; }
};

// The ranks that run collectives together, some of them in this process. Callers cannot tell
// whether another rank is a thread, a process or a remote machine.
class Group {
 public:
  virtual ~Group() = default;
  // Of the whole group.
  virtual int size() const = 0;
  // The ranks of this process, ascending.
  virtual std::span<const int> local() const = 0;
  // One of them, by its rank in the whole group; UsageError for a rank of another process.
  virtual Communicator& rank(int rank) = 0;

  // Whether a rank of this process has been waiting for another one for a while. From any thread.
  virtual bool waiting() const { return false; }
  // What this process waits for, where others are reached by messages. From any thread.
  struct Awaited {
    int worker = -1;             // whose message; -1: none, or not known
    std::uint64_t messages = 0;  // that have come
  };
  virtual Awaited awaited() const { return {}; }

  // As Communicator::abort. The first failure stays until the reset.
  virtual void abort(const Failure& failure) = 0;
  // The first one since the last reset, in any process.
  virtual std::optional<Failure> failure() const = 0;
  // Makes the group usable again after an abort, while no rank of this process is inside a call of
  // a collective. Collective over the processes: returns when every one has called it; CommError,
  // naming the missing process, after the timeout.
  virtual void reset() = 0;

  // Whether its ranks can run collectives, apart from failures: a group on GPUs in several
  // processes has to connect first, also after a reset. The same in all processes.
  virtual bool connected() const { return true; }
  // Connects, while no rank of this process is inside a call. Collective over the processes.
  // CommError if that fails in one of them, or takes longer than the timeout.
  virtual void connect() {}
};

}  // namespace lockstep
