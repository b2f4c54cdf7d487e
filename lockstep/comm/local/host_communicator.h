// HostCommunicator: collectives over host memory, whether the other ranks are threads or processes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/local/rendezvous.h"

namespace lockstep {

// The rounds of one rank: how its data gets to the others. Used by one thread at a time.
class HostRank {
 public:
  virtual ~HostRank() = default;
  // Begins a collective; returns its number. InternalError if too many are in flight.
  virtual std::uint64_t start(const Round& round) = 0;
  // Makes progress without waiting; true if `number` is over.
  virtual bool poll(std::uint64_t number) = 0;
  virtual void await_ranks(std::uint64_t number) = 0;
  virtual void finish(std::uint64_t number) = 0;
};

// Checks arguments, and makes collectives that run as rounds of the rank.
class HostCommunicator final : public Communicator {
 public:
  HostCommunicator(Rendezvous& rendezvous, int rank, HostRank& rounds)
      : rendezvous_(rendezvous), rank_(rank), rounds_(rounds) {}

  int rank() const override { return rank_; }
  int size() const override { return rendezvous_.size(); }
  int max_in_flight() const override { return static_cast<int>(Rendezvous::kSlots); }
  SumOrder sum_order() const override { return SumOrder::RankOrder; }
  std::unique_ptr<Collective> all_reduce(std::span<std::byte> data, DType dtype) override;
  std::unique_ptr<Collective> reduce_scatter(std::span<std::byte> data, DType dtype) override;
  std::unique_ptr<Collective> all_gather(std::span<std::byte> data, DType dtype) override;
  std::unique_ptr<Collective> broadcast(std::span<std::byte> data, int root) override;
  void abort(const Failure& failure) override { rendezvous_.abort(failure); }

 private:
  std::unique_ptr<Collective> make_sum(CollectiveKind kind, std::span<std::byte> data, DType dtype);
  std::unique_ptr<Collective> make(const Round& round);

  Rendezvous& rendezvous_;
  int rank_;
  HostRank& rounds_;
};

// Throws InternalError for one collective too many.
[[noreturn]] void fail_for_too_many(const Rendezvous& rendezvous, int rank, const Round& round);

}  // namespace lockstep
