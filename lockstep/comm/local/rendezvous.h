// Rendezvous: where the ranks of one process meet. Rounds are numbered; every rank starts the same
// ones in the same order.
//
// Each rank publishes two counts: how many rounds it has started (arrived), and of how many it has
// done its share (done). What it brings to a round lies in a ring of slots. Once all have arrived
// at a round, each rank does its share of the work for all, straight in their memory; once all have
// done theirs the round is over. There is one phase, and nobody owns a lock that another waits for.
//
// Abort: a rank says which round it works on (claimed) before it looks whether the group was
// aborted, and whoever aborts looks at the claims behind its abort. So a rank that leaves with an
// error first waits for the shares that are being worked on, and behind the error nobody touches
// its memory.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/local/event_count.h"
#include "lockstep/comm/local/round.h"

namespace lockstep {

class Rendezvous {
 public:
  // Rounds that a rank may have under way.
  static constexpr std::uint64_t kSlots = 64;

  Rendezvous(std::vector<std::string> names, std::chrono::milliseconds timeout);

  int size() const { return static_cast<int>(names_.size()); }
  const std::string& name(int rank) const { return names_[static_cast<std::size_t>(rank)]; }
  // "all_reduce of 1000 f32".
  std::string describe(const Round& round) const;

  // A rank's calls come one after the other. Each is a CommError where the group is or gets
  // aborted; a rank that finds the others missing or of another opinion aborts the group.
  //
  // Begins a round; gives its number. InternalError where too many are under way.
  std::uint64_t start(int rank, const Round& round);
  // Does this rank's shares of all rounds at which all have arrived; true if `number` is over.
  bool advance(int rank, std::uint64_t number);
  void await_ranks(int rank, std::uint64_t number);
  void finish(int rank, std::uint64_t number);
  // Throws where the group was aborted.
  void check();

  // From any thread. The first reason stays.
  void abort(const std::string& reason);
  bool aborted() const { return aborted_; }
  // While no rank is inside a call: all rounds under way are forgotten.
  void reset();
  // How often it was reset: rounds of an earlier generation are not under way any more.
  std::uint64_t generation() const { return generation_; }

 private:
  // Of one rank; only it writes them.
  struct Counts {
    alignas(64) std::atomic<std::uint64_t> arrived = 0;
    std::atomic<std::uint64_t> done = 0;
    alignas(64) std::atomic<std::uint64_t> claimed = 0;  // only who aborts looks
  };
  using Count = std::atomic<std::uint64_t> Counts::*;

  Counts& counts(int rank) { return counts_[static_cast<std::size_t>(rank)]; }
  std::span<const Round> rounds(std::uint64_t number) const;
  bool all_at(Count count, std::uint64_t value) const;
  void publish(int rank, Count count, std::uint64_t value);
  void do_shares(int rank, std::uint64_t end);
  void check_agreement(std::uint64_t number);
  template <class Ready>
  void await(int rank, std::uint64_t number, const Ready& ready);
  void await_shares_under_way() const;
  [[noreturn]] void fail_for_missing(int rank, std::uint64_t number);
  [[noreturn]] void abort_and_fail(const std::string& reason);
  [[noreturn]] void fail_as_aborted();

  std::vector<std::string> names_;
  std::chrono::milliseconds timeout_;
  Patience patience_;
  std::vector<Counts> counts_;
  std::vector<Round> slots_;  // of round n: size() of them from n % kSlots * size()
  alignas(64) std::atomic<bool> aborted_ = false;
  std::atomic<std::uint64_t> generation_ = 0;
  std::mutex reason_mutex_;
  std::string reason_;
  alignas(64) EventCount changes_;
};

}  // namespace lockstep
