// RemoteGroup: ranks of several workers, on one host or several, over a wire (wire.h).
//
// The ranks of a worker are threads; one more thread per worker runs their collectives, one after
// another, with those of the other workers (worker_collectives.h). A rank that starts a collective
// leaves its memory to that thread, which tells it when the collective is over.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/wire.h"

namespace lockstep {

struct RemoteGroupOptions {
  // Names of all ranks, in their order, for messages.
  std::vector<std::string> names = {};
  // How many ranks each worker holds, possibly none: the first ones belong to worker 0.
  std::vector<int> ranks_of_worker = {};
  // How long a rank waits for the others, and workers for one another when the group is made.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  MakeWire make_wire = {};
};

// Making it is collective: returns when all workers have; CommError, naming the missing ones, after
// the timeout; UsageError if they make different groups. A worker that destroys its group while
// others run collectives is named to them. After a failed reset the group is of no more use.
class RemoteGroup final : public Group {
 public:
  explicit RemoteGroup(RemoteGroupOptions options);
  ~RemoteGroup() override;
  RemoteGroup(const RemoteGroup&) = delete;
  RemoteGroup& operator=(const RemoteGroup&) = delete;

  int size() const override;
  std::span<const int> local() const override;
  Communicator& rank(int rank) override;
  bool waiting() const override;
  Awaited awaited() const override;
  void abort(const Failure& failure) override;
  std::optional<Failure> failure() const override;
  void reset() override;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace lockstep
