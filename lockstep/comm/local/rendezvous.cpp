#include "lockstep/comm/local/rendezvous.h"

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// If every rank has a core, spinning is cheaper than being woken. Otherwise a rank that spins keeps
// the core from the one it waits for.
constexpr SpinPolicy kOwnCore{.spins = 1000, .yielding = 2ms};
constexpr SpinPolicy kSharedCore{.spins = 0, .yielding = 20us};

constexpr std::chrono::milliseconds kLongest = 24h * 365;
// How often a rank that waits for another process checks whether that is still alive.
constexpr std::chrono::milliseconds kLookEvery = 100ms;

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

Rendezvous::Rendezvous(RendezvousOptions options, const Meeting& meeting, RendezvousSite& site)
    : options_(std::move(options)),
      meeting_(meeting),
      site_(site),
      spin_policy_(options_.own_cores ? kOwnCore : kSharedCore),
      look_every_(options_.between_processes ? kLookEvery : kLongest),
      started_(options_.between_processes ? &RankCounts::started : &RankCounts::arrived),
      last_(options_.between_processes ? &RankCounts::left : &RankCounts::done) {
  options_.timeout = std::min(options_.timeout, kLongest);
}

std::string Rendezvous::describe(const Round& round) const {
  if (round.kind == CollectiveKind::Broadcast) {
    return fmt::format("{} of {} bytes from {}", name_of(round.kind), round.bytes,
                       name(round.root));
  }
  return fmt::format("{} of {} {}", name_of(round.kind), round.elements(),
                     lockstep::name_of(round.dtype));
}

// Ranks wait for conditions on all ranks, and the last to arrive sees all the others; the rest need
// not wake anybody.
void Rendezvous::publish(int rank, Count count, std::uint64_t value) {
  (counts(rank).*count).store(value);
  if (all_at(count, value)) meeting_.changes().notify();
}

bool Rendezvous::has_free_slot(int rank) const {
  const std::uint64_t number = meeting_.counts(rank).arrived.load();
  return number < kSlots || all_at(last_, number - kSlots + 1);
}

void Rendezvous::arrive(int rank, const Round& round) {
  const std::uint64_t number = counts(rank).arrived.load();
  meeting_.rounds(number)[static_cast<std::size_t>(rank)] = round;
  publish(rank, &RankCounts::arrived, number + 1);
}

bool Rendezvous::do_slices(int rank, std::uint64_t end) {
  RankCounts& mine = counts(rank);
  const std::uint64_t first = mine.done.load();
  std::uint64_t next = first;
  for (; next < end && all_at(&RankCounts::arrived, next + 1); ++next) {
    check_agreement(next);
    mine.claimed.store(next + 1);
    if (aborted()) {
      mine.claimed.store(next);
      fail_as_aborted();
    }
    site_.do_slice(meeting_.rounds(next), next, rank);
    publish(rank, &RankCounts::done, next + 1);
  }
  return next > first;
}

// Every rank compares with rank 0, so that all report the same.
void Rendezvous::check_agreement(std::uint64_t number) {
  if (const std::optional<Failure> failure = disagreement(number, 0, size())) {
    abort_and_fail(*failure);
  }
}

std::optional<Failure> Rendezvous::disagreement(std::uint64_t number, int first, int count) const {
  const std::span<const Round> all = meeting_.rounds(number).subspan(
      static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  const auto other = std::find_if(all.begin() + 1, all.end(),
                                  [&](const Round& round) { return !round.agrees_with(all[0]); });
  if (other == all.end()) return std::nullopt;
  const int rank = first + static_cast<int>(other - all.begin());
  return Failure{
      .rank = rank,
      .kind = FailureKind::Comm,
      .message = fmt::format("[comm] collective {}: {} runs {} and {} runs {}; all ranks must "
                             "start the same collectives in the same order",
                             all[0].collective, name(first), describe(all[0]), name(rank),
                             describe(*other))};
}

void Rendezvous::fail_for_missing(int rank, const Round& round, std::uint64_t number) {
  std::string absent;
  std::string slow;
  int first = -1;
  const auto add = [&](std::string& list, int other) {
    list += (list.empty() ? "" : ", ") + name(other);
    if (first < 0) first = other;
  };
  for (int other = 0; other < size(); ++other) {
    if ((counts(other).*started_).load() <= round.collective) add(absent, other);
  }
  if (first < 0) {
    for (const int other : site_.find_slow(number)) add(slow, other);
  }
  for (const Count count : {&RankCounts::done, last_}) {
    if (first >= 0) break;
    for (int other = 0; other < size(); ++other) {
      if (other != rank && (counts(other).*count).load() <= number) add(slow, other);
    }
  }
  abort_and_fail(
      {.rank = first,
       .kind = FailureKind::Comm,
       .message = fmt::format("[comm] {} waited {} ms in {} (collective {}){}{}", name(rank),
                              options_.timeout.count(), describe(round), round.collective,
                              absent.empty() ? "" : "; not started by " + absent,
                              slow.empty() ? "" : "; not finished by " + slow)});
}

// A process writes its record before it publishes it: nobody sees half a failure, wherever the
// process dies.
void Rendezvous::record(const Failure& failure) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (!aborted()) {
      meeting_.failure(options_.process).set(failure);
      std::uint32_t none = 0;
      meeting_.failed().compare_exchange_strong(none,
                                                static_cast<std::uint32_t>(options_.process) + 1);
    }
  }
  meeting_.changes().notify();
  site_.on_abort();
}

void Rendezvous::abort(const Failure& failure) {
  record(failure);
  await_slices_in_progress();
}

std::optional<Failure> Rendezvous::failure() const {
  const std::uint32_t failed = meeting_.failed().load();
  if (failed == 0) return std::nullopt;
  return meeting_.failure(static_cast<int>(failed) - 1).get();
}

void Rendezvous::await_slices_in_progress() const {
  if (options_.between_processes && !options_.by_one_thread) return;
  for (const RankCounts& counts : meeting_.counts()) {
    while (counts.claimed.load() > counts.done.load()) sched_yield();
  }
}

void Rendezvous::fail_as_aborted() {
  await_slices_in_progress();
  throw CommError(failure().value_or(Failure{}).message);
}

void Rendezvous::abort_and_fail(const Failure& failure) {
  this->abort(failure);
  fail_as_aborted();
}

void Rendezvous::reset(std::span<const int> ranks) {
  for (const int rank : ranks) {
    RankCounts& mine = counts(rank);
    for (const Count count : {&RankCounts::started, &RankCounts::arrived, &RankCounts::done,
                              &RankCounts::left, &RankCounts::claimed}) {
      (mine.*count).store(0);
    }
  }
  const std::lock_guard lock(failure_mutex_);
  ++generation_;
  meeting_.failed().store(0);
}

}  // namespace lockstep
