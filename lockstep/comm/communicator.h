// Communicator: what one rank does together with the others of its group. Every collective is bound
// to its memory once and then run once a step, so that running allocates nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "lockstep/base/dtype.h"
#include "lockstep/device/device.h"

namespace lockstep {

// One collective of one rank. start() begins a round and finish() ends it; in between the memory
// belongs to the group. A rank may have several under way; all ranks must start the same ones in
// the same order, and a rank finishes them in the order in which it started them.
class Collective {
 public:
  virtual ~Collective() = default;

  // Says that this rank's memory is ready. Does not wait.
  virtual void start() = 0;
  // Does what can be done without waiting; true when the round is over for this rank and its memory
  // may be used again.
  virtual bool advance() = 0;
  // Waits until every rank has started this round; what is left then is communication.
  virtual void await_ranks() = 0;
  // Ends the round, waiting where it must. CommError, naming the ranks that are missing, behind the
  // group's timeout, and where the group was aborted or the ranks do not mean the same collective.
  virtual void finish() = 0;

  // A whole round as work of a stream, for memory of the stream's device. On the CPU it is over
  // when the call returns; on others errors show in Communicator::check.
  virtual void issue(Stream& /*stream*/) {
    start();
    finish();
  }
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // How many collectives a rank may have under way.
  virtual int most_under_way() const = 0;

  // Each takes the memory that the rounds will use and outlives them.
  //
  // In place: every rank's elements become the sums over the ranks, added in the order of the
  // ranks, so that all hold the same bits.
  virtual std::unique_ptr<Collective> all_reduce(std::span<std::byte> data, DType dtype) = 0;
  // In place: of every rank's data its own share (share_of) becomes the sum; the rest is undefined.
  virtual std::unique_ptr<Collective> reduce_scatter(std::span<std::byte> data, DType dtype) = 0;
  // In place: every rank brings its own share; afterwards all have all shares.
  virtual std::unique_ptr<Collective> all_gather(std::span<std::byte> data, DType dtype) = 0;
  // Afterwards all have what `root` had.
  virtual std::unique_ptr<Collective> broadcast(std::span<std::byte> data, int root) = 0;

  // Wakes every rank that waits, now and later, with a CommError that says why.
  virtual void abort(const std::string& reason) = 0;
  // CommError where a round that was issued to a stream failed: while a rank waits for a stream, it
  // looks here again and again.
  virtual void check() {}
  // How long such a round may take before the rank that waits for it gives the others up; zero: the
  // round ends by itself when it has waited too long.
  virtual std::chrono::milliseconds patience() const { return std::chrono::milliseconds(0); }
  // Whether all ranks are on one device, and wait for one another there: a step must then be one
  // chain, since branches need several of the device's queues, of which there are few.
  virtual bool on_one_device() const { return false; }
  // Another number after every reset that makes rounds useless which were issued into a recording.
  virtual std::uint64_t generation() const { return 0; }
};

// The ranks of one process.
class Group {
 public:
  virtual ~Group() = default;
  virtual Communicator& rank(int rank) = 0;
  // Makes the group usable again after an abort, while no rank is inside a collective's call.
  virtual void reset() = 0;
};

// The part of `elements` that a rank works on: equal shares, in order, cut at whole cache lines
// where there are enough elements.
struct Share {
  std::size_t begin = 0;
  std::size_t end = 0;
};
Share share_of(std::size_t elements, std::size_t element_bytes, int rank, int size);

}  // namespace lockstep
