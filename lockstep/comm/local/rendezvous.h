// Rendezvous: the protocol by which ranks run rounds together. Rounds are numbered; every rank
// starts the same ones in the same order.
//
// Each rank publishes counts: to how many rounds it has brought its data (arrived), in how many it
// has done its slice of the work (done), and from how many it has taken the result (left). What it
// brings to a round is stored in a ring of slots. Once all have arrived at a round, each rank does
// its slice for all; once all have done theirs, the result is there. Nobody holds a lock that
// another waits for.
//
// Threads of one process work directly in one another's memory: once all are done, the result is
// where it belongs and the slot is free, and nobody counts `left`. Processes copy their data to
// shared memory and take the result from there; a slot is free when all have left it.
//
// Abort: a rank publishes which round it works on (claimed) before it checks whether the group was
// aborted, and the aborting rank reads the claims after its abort. So a rank that leaves with an
// error first waits for the slices that are being worked on, and after the error nobody touches its
// memory. Between processes nobody touches another's memory anyway, so nobody waits for this.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/failure.h"
#include "lockstep/comm/local/meeting.h"

namespace lockstep {

// What differs between ranks that are threads and ranks that are processes.
class RendezvousSite {
 public:
  virtual ~RendezvousSite() = default;
  // The work of `rank` for round `number`, at which all have arrived in agreement.
  virtual void do_slice(std::span<const Round> rounds, std::uint64_t number, int rank) noexcept = 0;
  // Polled while a rank waits: the failure of a process that is gone.
  virtual std::optional<Failure> find_dead() { return std::nullopt; }
  // Called when the group is aborted, from any thread.
  virtual void on_abort() noexcept {}
  // The ranks for which the others wait in round `number`, at which all have arrived; none: those
  // whose counts say so.
  virtual std::vector<int> find_slow(std::uint64_t /*number*/) { return {}; }
};

struct RendezvousOptions {
  std::vector<std::string> names;  // of all ranks
  std::chrono::milliseconds timeout = std::chrono::minutes(5);
  bool own_cores = false;          // whether every rank has its own core
  int process = 0;                 // this one
  bool between_processes = false;  // whether ranks take results from shared memory
  // Whether a thread of its own does the work of all ranks of this process, in their memory.
  bool by_one_thread = false;
};

class Rendezvous {
 public:
  static constexpr std::uint64_t kSlots = Meeting::kSlots;

  Rendezvous(RendezvousOptions options, const Meeting& meeting, RendezvousSite& site);

  int size() const { return static_cast<int>(options_.names.size()); }
  const std::string& name(int rank) const { return options_.names[static_cast<std::size_t>(rank)]; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }
  // "all_reduce of 1000 f32".
  std::string describe(const Round& round) const;

  using Count = std::atomic<std::uint64_t> RankCounts::*;
  RankCounts& counts(int rank) { return meeting_.counts(rank); }
  // Whether all ranks' counts are at least this.
  bool all_at(Count count, std::uint64_t value) const {
    for (const RankCounts& counts : meeting_.counts()) {
      if ((counts.*count).load() < value) return false;
    }
    return true;
  }
  // Publishes the progress of this rank.
  void publish(int rank, Count count, std::uint64_t value);

  // A rank's calls come one after another. Each throws a CommError if the group is or gets aborted;
  // a rank that finds others missing or in another collective aborts the group.
  //
  // Whether the slot of this rank's next round is free: the round that used it is over, and nobody
  // will read it any more.
  bool has_free_slot(int rank) const;
  // Brings this rank's data to its next round.
  void arrive(int rank, const Round& round);
  // Does this rank's slices of the rounds before `end`, as far as all have arrived at them; true if
  // there were any.
  bool do_slices(int rank, std::uint64_t end);
  // Blocks until `ready` holds. After the timeout the error names the ranks that have not come to
  // the collective of `round`, or have not done their slice of `number`.
  template <class Ready>
  void await(int rank, const Round& round, std::uint64_t number, const Ready& ready) {
    const auto in_time = [&] { return aborted() || ready(); };
    const EventCount::Clock::time_point end = EventCount::Clock::now() + options_.timeout;
    SpinPolicy policy = spin_policy_;
    Waiting waiting(*this);
    while (!meeting_.changes().await(in_time, std::min<Duration>(look_every_, options_.timeout),
                                     policy)) {
      if (EventCount::Clock::now() >= end) fail_for_missing(rank, round, number);
      // What a process did before it ended counts.
      const std::optional<Failure> dead = site_.find_dead();
      if (dead && !in_time()) abort_and_fail(*dead);
      policy = {};
      waiting.begin();
    }
    check();
  }
  // Whether a rank of this process has been waiting for longer than `look_every_`.
  bool waiting() const { return waiting_.load() > 0; }
  // Throws if the group was aborted.
  void check() {
    if (aborted()) fail_as_aborted();
  }

  // From any thread. The first failure stays.
  void abort(const Failure& failure);
  // As abort, for the thread that does the work: does not wait until it has ended.
  void record(const Failure& failure);
  // What these ranks, from `first` on, bring to round `number`, if it is not the same.
  std::optional<Failure> disagreement(std::uint64_t number, int first, int count) const;
  // What a rank brings to a round.
  std::span<Round> rounds(std::uint64_t number) const { return meeting_.rounds(number); }
  bool aborted() const { return meeting_.failed().load() != 0; }
  std::optional<Failure> failure() const;
  // Call while no rank is inside a call: drops the rounds of these ranks, and the failure.
  void reset(std::span<const int> ranks);
  // How often it was reset: rounds of an earlier generation are no longer in flight.
  std::uint64_t generation() const { return generation_; }

 private:
  using Duration = EventCount::Clock::duration;

  // Counts a rank that waits for long.
  class Waiting {
   public:
    explicit Waiting(Rendezvous& rendezvous) : rendezvous_(rendezvous) {}
    ~Waiting() {
      if (begun_) --rendezvous_.waiting_;
    }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;
    void begin() {
      if (!begun_) ++rendezvous_.waiting_;
      begun_ = true;
    }

   private:
    Rendezvous& rendezvous_;
    bool begun_ = false;
  };

  void check_agreement(std::uint64_t number);
  void await_slices_in_progress() const;
  [[noreturn]] void fail_for_missing(int rank, const Round& round, std::uint64_t number);
  [[noreturn]] void abort_and_fail(const Failure& failure);
  [[noreturn]] void fail_as_aborted();

  RendezvousOptions options_;
  std::atomic<int> waiting_ = 0;
  Meeting meeting_;
  RendezvousSite& site_;
  SpinPolicy spin_policy_;
  Duration look_every_;
  Count started_;  // counts the collectives that a rank has started
  Count last_;     // counts the rounds whose slots are free again
  std::atomic<std::uint64_t> generation_ = 0;
  std::mutex failure_mutex_;  // guards this process's record
};

}  // namespace lockstep
