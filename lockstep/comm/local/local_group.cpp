#include "lockstep/comm/local/local_group.h"

#include <cstdint>

#include "lockstep/base/error.h"
#include "lockstep/comm/local/rendezvous.h"
#include "lockstep/comm/local/share_work.h"

namespace lockstep {
namespace {

class LocalCollective final : public Collective {
 public:
  LocalCollective(Rendezvous& rendezvous, int rank, const Round& round)
      : rendezvous_(rendezvous), rank_(rank), round_(round) {}

  void start() override {
    if (is_under_way()) {
      fail<InternalError>("[comm] {} starts {} again before it has finished it",
                          rendezvous_.name(rank_), rendezvous_.describe(round_));
    }
    number_ = rendezvous_.start(rank_, round_);
    generation_ = rendezvous_.generation();
    started_ = true;
  }

  bool advance() override {
    if (!is_under_way()) {
      rendezvous_.check();
    } else if (rendezvous_.advance(rank_, number_)) {
      started_ = false;
    }
    return !started_;
  }

  void await_ranks() override {
    if (!is_under_way()) return rendezvous_.check();
    rendezvous_.await_ranks(rank_, number_);
  }

  void finish() override {
    if (!is_under_way()) return rendezvous_.check();
    rendezvous_.finish(rank_, number_);
    started_ = false;
  }

 private:
  bool is_under_way() {
    started_ = started_ && generation_ == rendezvous_.generation();
    return started_;
  }

  Rendezvous& rendezvous_;
  int rank_;
  Round round_;
  std::uint64_t number_ = 0;
  std::uint64_t generation_ = 0;
  bool started_ = false;
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(Rendezvous& rendezvous, int rank) : rendezvous_(rendezvous), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return rendezvous_.size(); }
  int most_under_way() const override { return static_cast<int>(Rendezvous::kSlots); }

  std::unique_ptr<Collective> all_reduce(std::span<std::byte> data, DType dtype) override {
    return make_sum(CollectiveKind::AllReduce, data, dtype);
  }

  std::unique_ptr<Collective> reduce_scatter(std::span<std::byte> data, DType dtype) override {
    return make_sum(CollectiveKind::ReduceScatter, data, dtype);
  }

  std::unique_ptr<Collective> all_gather(std::span<std::byte> data, DType dtype) override {
    return make({.kind = CollectiveKind::AllGather,
                 .dtype = dtype,
                 .data = data.data(),
                 .bytes = data.size()});
  }

  std::unique_ptr<Collective> broadcast(std::span<std::byte> data, int root) override {
    require(root >= 0 && root < size(),
            "[comm] {}: broadcast from rank {}; there are ranks 0 to {}", rendezvous_.name(rank_),
            root, size() - 1);
    return make({.kind = CollectiveKind::Broadcast,
                 .dtype = DType::U8,
                 .root = root,
                 .data = data.data(),
                 .bytes = data.size()});
  }

  void abort(const std::string& reason) override { rendezvous_.abort(reason); }

 private:
  std::unique_ptr<Collective> make_sum(CollectiveKind kind, std::span<std::byte> data,
                                       DType dtype) {
    const Round round{.kind = kind, .dtype = dtype, .data = data.data(), .bytes = data.size()};
    require(can_add(dtype), "[comm] {}: {}: elements of this type cannot be added up",
            rendezvous_.name(rank_), rendezvous_.describe(round));
    require(reinterpret_cast<std::uintptr_t>(data.data()) % size_of(dtype) == 0,
            "[comm] {}: {}: the memory is not aligned to {} bytes", rendezvous_.name(rank_),
            rendezvous_.describe(round), size_of(dtype));
    return make(round);
  }

  std::unique_ptr<Collective> make(const Round& round) {
    require(round.bytes % size_of(round.dtype) == 0,
            "[comm] {}: {}: {} bytes are no whole number of elements of {} bytes",
            rendezvous_.name(rank_), rendezvous_.describe(round), round.bytes,
            size_of(round.dtype));
    return std::make_unique<LocalCollective>(rendezvous_, rank_, round);
  }

  Rendezvous& rendezvous_;
  int rank_;
};

}  // namespace

LocalGroup::LocalGroup(LocalGroupOptions options) {
  require(!options.names.empty(), "[comm] a group needs at least one rank; it was given no names");
  require(options.timeout.count() > 0, "[comm] a group's timeout must be positive, not {} ms",
          options.timeout.count());
  rendezvous_ = std::make_unique<Rendezvous>(std::move(options.names), options.timeout);
  for (int rank = 0; rank < rendezvous_->size(); ++rank) {
    ranks_.push_back(std::make_unique<LocalCommunicator>(*rendezvous_, rank));
  }
}

LocalGroup::~LocalGroup() = default;

int LocalGroup::size() const {
  return rendezvous_->size();
}

Communicator& LocalGroup::rank(int rank) {
  require(rank >= 0 && rank < size(), "[comm] rank {} of a group with ranks 0 to {}", rank,
          size() - 1);
  return *ranks_[static_cast<std::size_t>(rank)];
}

bool LocalGroup::aborted() const {
  return rendezvous_->aborted();
}

void LocalGroup::reset() {
  rendezvous_->reset();
}

}  // namespace lockstep
