// NcclRank: one rank's NCCL communicator, on its own GPU. It can be given up and made again.
#pragma once

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/cuda/first_failure.h"
#include "lockstep/comm/cuda/nccl_group.h"

namespace lockstep {

struct NcclPlace {
  int rank = 0;
  int size = 1;
  // How long a rank waits for the others, when connecting and in every collective.
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  // What the ranks of this process that belong to the group know of its failure.
  std::shared_ptr<FirstFailure> failure = {};
  // Where there are several workers: a group in host memory with a rank for each, through which a
  // failure reaches the others. NCCL alone may not notice that a rank of another process stopped.
  Group* workers = nullptr;
  int worker = 0;
};

// Its communicator is used under a mutex, so that any thread may end it at any time. NCCL's calls
// return at once, and say later what became of them.
class NcclRank final : public Communicator {
 public:
  NcclRank(Device& device, NcclPlace place);
  // Call after all steps that were recorded with it are gone.
  ~NcclRank() override;
  NcclRank(const NcclRank&) = delete;
  NcclRank& operator=(const NcclRank&) = delete;

  // Connects to the other ranks, which were given the same id (make_nccl_id); an older communicator
  // ends. Steps that were recorded with that one can no longer be used. CommError after the
  // timeout, or if the group is aborted meanwhile.
  void connect(const std::string& id);
  // Ends the communicator, and with it whatever waits on the GPU. From any thread.
  void end();
  // Whether it has been waiting for others for a while.
  bool waiting() const;

  int rank() const override { return place_.rank; }
  int size() const override { return place_.size; }
  int max_in_flight() const override { return 1 << 20; }
  SumOrder sum_order() const override { return SumOrder::Repeatable; }
  std::unique_ptr<Collective> all_reduce(std::span<std::byte> data, DType dtype) override;
  std::unique_ptr<Collective> reduce_scatter(std::span<std::byte> data, DType dtype) override;
  std::unique_ptr<Collective> all_gather(std::span<std::byte> data, DType dtype) override;
  std::unique_ptr<Collective> broadcast(std::span<std::byte> data, int root) override;
  // The other ranks of this process end when they check.
  void abort(const Failure& failure) override;
  void check() override;
  std::chrono::milliseconds timeout() const override { return place_.timeout; }
  std::uint64_t generation() const override { return generation_; }

  // Issues what `call` does with the communicator, and waits until NCCL has accepted it.
  template <class Call>
  void issue(const Call& call) {
    check();
    {
      const std::lock_guard lock(mutex_);
      if (comm_ != nullptr) expect(call(comm_), "issuing a collective");
    }
    await_ready("issuing a collective");
  }
  Stream& stream() { return *stream_; }
  Device& device() { return device_; }

 private:
  // Waits until NCCL has done what it was asked for.
  void await_ready(const char* what);
  // What NCCL says about the last call; CommError, naming the rank, if that is an error.
  ncclResult_t state(const char* what);
  void expect(ncclResult_t status, const char* what) const;  // under the mutex
  void look_at_workers();
  void note_wait();

  Device& device_;
  NcclPlace place_;
  std::mutex mutex_;  // guards the next two
  ncclComm_t comm_ = nullptr;
  std::vector<std::thread> endings_;  // of communicators that were given up
  std::unique_ptr<Stream> stream_;    // of collectives started by start()
  std::atomic<std::uint64_t> generation_ = 0;
  std::atomic<std::int64_t> looked_ns_ = 0;          // at the other workers
  std::atomic<std::int64_t> checked_ns_ = 0;         // the last time
  std::atomic<std::int64_t> checking_since_ns_ = 0;  // again and again
};

// Connects all ranks of this process, each on a thread of its own.
void connect_all(std::span<const std::unique_ptr<NcclRank>> ranks, const std::string& id);

}  // namespace lockstep
