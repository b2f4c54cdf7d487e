#include "lockstep/comm/local/host_communicator.h"

#include "lockstep/base/error.h"
#include "lockstep/comm/local/slice_work.h"

namespace lockstep {
namespace {

class HostCollective final : public Collective {
 public:
  HostCollective(Rendezvous& rendezvous, int rank, HostRank& rounds, const Round& round)
      : rendezvous_(rendezvous), rank_(rank), rounds_(rounds), round_(round) {}

  void start() override {
    if (in_flight()) {
      fail<InternalError>("[comm] {} starts {} again before it has finished it",
                          rendezvous_.name(rank_), rendezvous_.describe(round_));
    }
    rendezvous_.check();
    number_ = rounds_.start(round_);
    generation_ = rendezvous_.generation();
    started_ = true;
  }

  bool poll() override {
    rendezvous_.check();
    if (in_flight() && rounds_.poll(number_)) started_ = false;
    return !started_;
  }

  void await_ranks() override {
    rendezvous_.check();
    if (in_flight()) rounds_.await_ranks(number_);
  }

  void finish() override {
    rendezvous_.check();
    if (!in_flight()) return;
    rounds_.finish(number_);
    started_ = false;
  }

 private:
  bool in_flight() {
    started_ = started_ && generation_ == rendezvous_.generation();
    return started_;
  }

  Rendezvous& rendezvous_;
  int rank_;
  HostRank& rounds_;
  Round round_;
  std::uint64_t number_ = 0;
  std::uint64_t generation_ = 0;
  bool started_ = false;
};

}  // namespace

std::unique_ptr<Collective> HostCommunicator::all_reduce(std::span<std::byte> data, DType dtype) {
  return make_sum(CollectiveKind::AllReduce, data, dtype);
}

std::unique_ptr<Collective> HostCommunicator::reduce_scatter(std::span<std::byte> data,
                                                             DType dtype) {
  return make_sum(CollectiveKind::ReduceScatter, data, dtype);
}

std::unique_ptr<Collective> HostCommunicator::all_gather(std::span<std::byte> data, DType dtype) {
  return make({.kind = CollectiveKind::AllGather,
               .dtype = dtype,
               .data = data.data(),
               .bytes = data.size()});
}

std::unique_ptr<Collective> HostCommunicator::broadcast(std::span<std::byte> data, int root) {
  require(root >= 0 && root < size(), "[comm] {}: broadcast from rank {}; there are ranks 0 to {}",
          rendezvous_.name(rank_), root, size() - 1);
  return make({.kind = CollectiveKind::Broadcast,
               .dtype = DType::U8,
               .root = root,
               .data = data.data(),
               .bytes = data.size()});
}

std::unique_ptr<Collective> HostCommunicator::make_sum(CollectiveKind kind,
                                                       std::span<std::byte> data, DType dtype) {
  const Round round{.kind = kind, .dtype = dtype, .data = data.data(), .bytes = data.size()};
  require(can_add(dtype), "[comm] {}: {}: elements of this type cannot be added up",
          rendezvous_.name(rank_), rendezvous_.describe(round));
  require(reinterpret_cast<std::uintptr_t>(data.data()) % size_of(dtype) == 0,
          "[comm] {}: {}: the memory is not aligned to {} bytes", rendezvous_.name(rank_),
          rendezvous_.describe(round), size_of(dtype));
  return make(round);
}

std::unique_ptr<Collective> HostCommunicator::make(const Round& round) {
  require(round.bytes % size_of(round.dtype) == 0,
          "[comm] {}: {}: {} bytes are no whole number of elements of {} bytes",
          rendezvous_.name(rank_), rendezvous_.describe(round), round.bytes, size_of(round.dtype));
  return std::make_unique<HostCollective>(rendezvous_, rank_, rounds_, round);
}

void fail_for_too_many(const Rendezvous& rendezvous, int rank, const Round& round) {
  fail<InternalError>(
      "[comm] {} starts {} while {} collectives are in flight, the most there may be",
      rendezvous.name(rank), rendezvous.describe(round), Rendezvous::kSlots);
}

}  // namespace lockstep
