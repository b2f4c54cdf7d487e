// Wire: carries bytes between the workers of a job, and knows nothing of what they mean. Gloo and
// MPI implement it; the sums over workers are made in remote/, in an order of our own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

// The connection with a worker is lost: the worker has ended, or the network is down.
class LostWorker : public CommError {
 public:
  LostWorker(int worker, const std::string& message) : CommError(message), worker_(worker) {}
  int worker() const { return worker_; }

 private:
  int worker_;
};

// One message on its way. Destroying it gives it up: its memory is no longer touched, and the
// connection may be of no more use.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Waits; true when the message has been received, or its memory may be used again. False after
  // about 100 ms or an interrupt, so that the caller can look around. LostWorker if it will never
  // happen.
  virtual bool await() = 0;
  // Does not wait: LostWorker if it is not over and never will be.
  virtual void check() = 0;
};

// Used by one thread at a time, except for interrupt. Destroying it closes the connections; its
// transfers are destroyed before.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual int worker() const = 0;
  virtual int workers() const = 0;

  // A message is received where worker and tag are the same. A wire may compare only the lower 31
  // bits of tags: they differ between all messages that are under way. The upper bits guard against
  // messages that mean something else, which must not be longer than the receiver's memory. No
  // message is empty.
  virtual std::unique_ptr<Transfer> send(int to, std::uint64_t tag,
                                         std::span<const std::byte> data) = 0;
  // A message may be shorter than `data`.
  virtual std::unique_ptr<Transfer> receive(int from, std::uint64_t tag,
                                            std::span<std::byte> data) = 0;
  // Wakes a thread that waits for a transfer; one that is about to may miss it. From any thread.
  virtual void interrupt() = 0;
};

// Makes the wires of one group: each generation needs a new one, since a connection on which a
// message was given up is of no more use. Collective over the workers; CommError that names the
// missing workers after a timeout.
using MakeWire = std::function<std::unique_ptr<Wire>(std::uint64_t generation)>;

}  // namespace lockstep
