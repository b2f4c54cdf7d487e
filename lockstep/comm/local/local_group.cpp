#include "lockstep/comm/local/local_group.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/comm/local/host_communicator.h"
#include "lockstep/comm/local/rendezvous.h"
#include "lockstep/comm/local/slice_work.h"
#include "lockstep/device/cpu/cpu_device.h"

namespace lockstep {
namespace {

class ThreadsSite final : public RendezvousSite {
 public:
  void do_slice(std::span<const Round> rounds, std::uint64_t, int rank) noexcept override {
    lockstep::do_slice(rounds, rank);
  }
};

// A collective is one round, directly in the memory of the ranks.
class LocalRank final : public HostRank {
 public:
  LocalRank(Rendezvous& rendezvous, int rank)
      : rendezvous_(rendezvous), rank_(rank), mine_(rendezvous.counts(rank)) {}

  std::uint64_t start(const Round& round) override {
    if (!rendezvous_.has_free_slot(rank_)) fail_for_too_many(rendezvous_, rank_, round);
    const std::uint64_t number = mine_.arrived.load();
    Round& kept = rounds_[number % Rendezvous::kSlots];
    kept = round;
    kept.collective = number;
    rendezvous_.arrive(rank_, kept);
    return number;
  }

  bool poll(std::uint64_t number) override {
    rendezvous_.do_slices(rank_, mine_.arrived.load());
    return over(number);
  }

  void await_ranks(std::uint64_t number) override {
    // Others may be waiting for this rank's slices of earlier rounds before they start this one.
    for (;;) {
      rendezvous_.do_slices(rank_, number);
      if (all_arrived(number)) return;
      const std::uint64_t next = mine_.done.load();
      await(number, [&] { return all_arrived(std::min(next, number)); });
    }
  }

  void finish(std::uint64_t number) override {
    // While others are busy with this round, this rank works on later ones.
    const std::uint64_t started = mine_.arrived.load();
    for (;;) {
      rendezvous_.do_slices(rank_, started);
      if (over(number)) return;
      const std::uint64_t next = mine_.done.load();
      await(number, [&] { return over(number) || (next < started && all_arrived(next)); });
    }
  }

 private:
  bool all_arrived(std::uint64_t number) const {
    return rendezvous_.all_at(&RankCounts::arrived, number + 1);
  }
  bool over(std::uint64_t number) const {
    return rendezvous_.all_at(&RankCounts::done, number + 1);
  }
  template <class Ready>
  void await(std::uint64_t number, const Ready& ready) {
    rendezvous_.await(rank_, rounds_[number % Rendezvous::kSlots], number, ready);
  }

  Rendezvous& rendezvous_;
  int rank_;
  RankCounts& mine_;
  Round rounds_[Rendezvous::kSlots];  // in flight
};

struct alignas(64) CacheLine {
  std::byte bytes[64] = {};
};

}  // namespace

struct LocalGroup::Parts {
  explicit Parts(LocalGroupOptions options)
      : ranks(static_cast<int>(options.names.size())),
        memory(Meeting::bytes(ranks, 1) / sizeof(CacheLine) + 1),
        rendezvous({.names = std::move(options.names),
                    .timeout = options.timeout,
                    .own_cores = static_cast<std::size_t>(ranks) <= available_cores().size()},
                   Meeting(memory.front().bytes, ranks, 1), site),
        local(static_cast<std::size_t>(ranks)) {
    std::iota(local.begin(), local.end(), 0);
    for (const int rank : local) {
      rounds.push_back(std::make_unique<LocalRank>(rendezvous, rank));
      communicators.push_back(std::make_unique<HostCommunicator>(rendezvous, rank, *rounds.back()));
    }
  }

  int ranks;
  std::vector<CacheLine> memory;
  ThreadsSite site;
  Rendezvous rendezvous;
  std::vector<int> local;
  std::vector<std::unique_ptr<LocalRank>> rounds;
  std::vector<std::unique_ptr<HostCommunicator>> communicators;
};

LocalGroup::LocalGroup(LocalGroupOptions options) {
  require(!options.names.empty(), "[comm] a group needs at least one rank; it was given no names");
  require(options.timeout.count() > 0, "[comm] a group's timeout must be positive, not {} ms",
          options.timeout.count());
  parts_ = std::make_unique<Parts>(std::move(options));
}

LocalGroup::~LocalGroup() = default;

int LocalGroup::size() const {
  return parts_->ranks;
}

std::span<const int> LocalGroup::local() const {
  return parts_->local;
}

Communicator& LocalGroup::rank(int rank) {
  require(rank >= 0 && rank < size(), "[comm] rank {} of a group with ranks 0 to {}", rank,
          size() - 1);
  return *parts_->communicators[static_cast<std::size_t>(rank)];
}

void LocalGroup::abort(const Failure& failure) {
  parts_->rendezvous.abort(failure);
}

std::optional<Failure> LocalGroup::failure() const {
  return parts_->rendezvous.failure();
}

void LocalGroup::reset() {
  parts_->rendezvous.reset(parts_->local);
}

}  // namespace lockstep
