// SharedGroup: ranks in several processes of one host.
//
// Every rank has a staging buffer in shared memory: a ring of chunks, one for each round of the
// rendezvous (local/rendezvous.h). A collective is cut into as many rounds as its data needs
// chunks. A rank copies its next chunk in and arrives; once all have arrived, it adds its slice of
// the chunk, from all staging buffers into its own; once all are done, it copies the slices out of
// the buffers of the ranks that added them, and leaves. The rounds overlap, so that ranks copy in,
// add and copy out at the same time. Data that is only copied (all-gather, broadcast) goes in once
// and is copied out by all that need it. Nobody touches another process's private memory.
//
// A chunk holds a part of every rank's slice of the collective (slice_of), so that the work of
// every round is divided evenly. Sums are added element by element in an order that depends only on
// the ranks of each process (slice_work.h), not on how the data is cut.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/local/host_communicator.h"
#include "lockstep/comm/local/rendezvous.h"
#include "lockstep/comm/shared/processes.h"
#include "lockstep/comm/shared/shared_host.h"
#include "lockstep/comm/shared/shared_memory.h"
#include "lockstep/comm/shared/shared_rank.h"

namespace lockstep {

// Where the parts of a group are in its memory.
struct SharedLayout {
  SharedLayout(int ranks, int processes);
  std::size_t barrier = 0;
  std::size_t gone = 0;  // how many processes have released it
  std::size_t staging = 0;
  std::size_t bytes = 0;
  int processes = 0;
  StagingShape shape;
};

// The memory of a group: a part of the host's file. The last process to release it frees it.
class SharedRegion {
 public:
  SharedRegion(std::shared_ptr<const SharedFile> file, std::size_t offset,
               const SharedLayout& layout);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  std::byte* data() const { return mapping_->data(); }
  const SharedLayout& layout() const { return layout_; }

 private:
  std::shared_ptr<const SharedFile> file_;
  std::size_t offset_;
  SharedLayout layout_;
  std::unique_ptr<Mapping> mapping_;
};

class SharedGroup final : public Group, private RendezvousSite {
 public:
  SharedGroup(const SharedGroupOptions& options, std::shared_ptr<Processes> processes,
              std::unique_ptr<SharedRegion> region);

  int size() const override { return rendezvous_.size(); }
  std::span<const int> local() const override { return local_; }
  Communicator& rank(int rank) override;
  bool waiting() const override { return rendezvous_.waiting(); }
  void abort(const Failure& failure) override { rendezvous_.abort(failure); }
  std::optional<Failure> failure() const override { return rendezvous_.failure(); }
  void reset() override;

 private:
  void do_slice(std::span<const Round> rounds, std::uint64_t number, int rank) noexcept override;
  std::optional<Failure> find_dead() override;

  std::vector<int> ranks_of_process_;
  std::shared_ptr<Processes> processes_;
  std::unique_ptr<SharedRegion> region_;
  ProcessBarrier barrier_;
  Rendezvous rendezvous_;
  std::vector<int> local_;
  std::vector<std::unique_ptr<SharedRank>> rounds_;  // as local_
  std::vector<std::unique_ptr<HostCommunicator>> communicators_;
};

}  // namespace lockstep
