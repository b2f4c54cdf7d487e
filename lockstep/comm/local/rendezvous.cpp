#include "lockstep/comm/local/rendezvous.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/comm/local/share_work.h"
#include "lockstep/device/cpu/cpu_device.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// Where every rank has a core, looking is cheaper than being woken. Else a rank that looks keeps
// the core from the one it waits for.
constexpr Patience kOwnCore{.spins = 1000, .yielding = 2ms};
constexpr Patience kSharedCore{.spins = 0, .yielding = 20us};

constexpr std::chrono::milliseconds kLongest = 24h * 365;

const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::AllReduce:
      return "all_reduce";
    case CollectiveKind::ReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::AllGather:
      return "all_gather";
    case CollectiveKind::Broadcast:
      return "broadcast";
  }
  return "?";
}

}  // namespace

Rendezvous::Rendezvous(std::vector<std::string> names, std::chrono::milliseconds timeout)
    : names_(std::move(names)),
      timeout_(std::min(timeout, kLongest)),
      patience_(names_.size() <= available_cores().size() ? kOwnCore : kSharedCore),
      counts_(names_.size()),
      slots_(kSlots * names_.size()) {}

std::string Rendezvous::describe(const Round& round) const {
  if (round.kind == CollectiveKind::Broadcast) {
    return fmt::format("{} of {} bytes from {}", name_of(round.kind), round.bytes,
                       name(round.root));
  }
  return fmt::format("{} of {} {}", name_of(round.kind), round.elements(),
                     lockstep::name_of(round.dtype));
}

std::span<const Round> Rendezvous::rounds(std::uint64_t number) const {
  return {slots_.data() + number % kSlots * names_.size(), names_.size()};
}

bool Rendezvous::all_at(Count count, std::uint64_t value) const {
  return std::all_of(counts_.begin(), counts_.end(),
                     [&](const Counts& counts) { return (counts.*count).load() >= value; });
}

// Conditions that ranks wait for speak of all ranks, and the last to come sees all the others; the
// rest need wake nobody.
void Rendezvous::publish(int rank, Count count, std::uint64_t value) {
  (counts(rank).*count).store(value);
  if (all_at(count, value)) changes_.notify();
}

std::uint64_t Rendezvous::start(int rank, const Round& round) {
  check();
  const std::uint64_t number = counts(rank).arrived.load();
  // The slot is free once the round that used it is over: nobody will look at it any more.
  if (number >= kSlots && !all_at(&Counts::done, number - kSlots + 1)) {
    fail<InternalError>(
        "[comm] {} starts {} while {} collectives are under way, the most there may be", name(rank),
        describe(round), kSlots);
  }
  slots_[number % kSlots * names_.size() + static_cast<std::size_t>(rank)] = round;
  publish(rank, &Counts::arrived, number + 1);
  return number;
}

bool Rendezvous::advance(int rank, std::uint64_t number) {
  check();
  do_shares(rank, counts(rank).arrived.load());
  return all_at(&Counts::done, number + 1);
}

void Rendezvous::await_ranks(int rank, std::uint64_t number) {
  check();
  // Others may be waiting for this rank's shares of earlier rounds before they start this one.
  for (;;) {
    do_shares(rank, number);
    if (all_at(&Counts::arrived, number + 1)) return;
    const std::uint64_t next = counts(rank).done.load();
    await(rank, number, [&] { return all_at(&Counts::arrived, std::min(next, number) + 1); });
  }
}

void Rendezvous::finish(int rank, std::uint64_t number) {
  check();
  // While others have work left for this round, its own for later ones is done.
  const std::uint64_t started = counts(rank).arrived.load();
  for (;;) {
    do_shares(rank, started);
    if (all_at(&Counts::done, number + 1)) return;
    const std::uint64_t next = counts(rank).done.load();
    await(rank, number, [&] {
      return all_at(&Counts::done, number + 1) ||
             (next < started && all_at(&Counts::arrived, next + 1));
    });
  }
}

// This rank's shares of the rounds before `end`, as far as all have arrived at them.
void Rendezvous::do_shares(int rank, std::uint64_t end) {
  Counts& mine = counts(rank);
  for (std::uint64_t next = mine.done.load(); next < end && all_at(&Counts::arrived, next + 1);
       ++next) {
    check_agreement(next);
    mine.claimed.store(next + 1);
    if (aborted_.load()) {
      mine.claimed.store(next);
      fail_as_aborted();
    }
    do_share(rounds(next), rank);
    publish(rank, &Counts::done, next + 1);
  }
}

// Every rank compares with rank 0, so that all say the same.
void Rendezvous::check_agreement(std::uint64_t number) {
  const std::span<const Round> all = rounds(number);
  const auto other = std::find_if(all.begin() + 1, all.end(),
                                  [&](const Round& round) { return !round.agrees_with(all[0]); });
  if (other == all.end()) return;
  abort_and_fail(
      fmt::format("[comm] collective {}: {} runs {} and {} runs {}; all ranks must start the same "
                  "collectives in the same order",
                  number, name(0), describe(all[0]), name(static_cast<int>(other - all.begin())),
                  describe(*other)));
}

template <class Ready>
void Rendezvous::await(int rank, std::uint64_t number, const Ready& ready) {
  const bool in_time =
      changes_.await([&] { return aborted_.load() || ready(); }, timeout_, patience_);
  if (aborted_.load()) fail_as_aborted();
  if (!in_time) fail_for_missing(rank, number);
}

void Rendezvous::fail_for_missing(int rank, std::uint64_t number) {
  std::string absent;
  std::string slow;
  const auto add = [](std::string& list, const std::string& name) {
    list += (list.empty() ? "" : ", ") + name;
  };
  for (int other = 0; other < size(); ++other) {
    if (counts(other).arrived.load() <= number) {
      add(absent, name(other));
    } else if (other != rank && counts(other).done.load() <= number) {
      add(slow, name(other));
    }
  }
  const Round& mine = rounds(number)[static_cast<std::size_t>(rank)];
  abort_and_fail(fmt::format("[comm] {} waited {} ms in {} (collective {}){}{}", name(rank),
                             timeout_.count(), describe(mine), number,
                             absent.empty() ? "" : "; not started by " + absent,
                             slow.empty() || !absent.empty() ? "" : "; not finished by " + slow));
}

void Rendezvous::check() {
  if (aborted_.load()) fail_as_aborted();
}

void Rendezvous::abort(const std::string& reason) {
  {
    std::lock_guard lock(reason_mutex_);
    if (!aborted_) reason_ = reason;
    aborted_ = true;
  }
  changes_.notify();
  await_shares_under_way();
}

void Rendezvous::await_shares_under_way() const {
  for (const Counts& counts : counts_) {
    while (counts.claimed.load() > counts.done.load()) sched_yield();
  }
}

void Rendezvous::fail_as_aborted() {
  await_shares_under_way();
  std::lock_guard lock(reason_mutex_);
  throw CommError(reason_);
}

void Rendezvous::abort_and_fail(const std::string& reason) {
  this->abort(reason);
  fail_as_aborted();
}

void Rendezvous::reset() {
  for (Counts& counts : counts_) {
    counts.arrived = 0;
    counts.done = 0;
    counts.claimed = 0;
  }
  std::lock_guard lock(reason_mutex_);
  reason_.clear();
  ++generation_;
  aborted_ = false;
}

}  // namespace lockstep
