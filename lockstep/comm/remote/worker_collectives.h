// WorkerCollectives: collectives between workers, run by the communication thread of each.
//
// The ranks of a worker are added in the memory of its first rank. Data that fits into a mail
// (mailboxes.h) goes to all workers with it, and each adds everything. Otherwise every worker sends
// each other one the part whose sums that one makes, adds what it receives chunk by chunk in the
// order of the workers, and sends the sums back to all. The parts are the slices of the worker's
// ranks, so a reduce-scatter is the first half and an all-gather the second. Messages are sent from
// and received in the memory of the ranks, except for the parts to be added.
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/comm/local/round.h"
#include "lockstep/comm/remote/mailboxes.h"
#include "lockstep/comm/remote/worker_ranks.h"
#include "lockstep/comm/wire.h"

namespace lockstep {

// Where the collectives belong.
class CollectiveSite {
 public:
  virtual ~CollectiveSite() = default;
  // While waiting: throws if that is of no use.
  virtual void look() = 0;
  // Says what another worker runs; then, when all have: throws if they do not run the same.
  virtual void met(int worker, const MailHead& mail) = 0;
  virtual void all_met() = 0;
};

class WorkerCollectives {
 public:
  WorkerCollectives(const WorkerRanks& ranks, Wire& wire, Mailboxes& mails, CollectiveSite& site);

  // Runs one; `local`: what the ranks of this worker bring to it, in agreement.
  void run(std::span<const Round> local);
  // After an error: gives up all messages that are under way.
  void drop();
  // The worker whose message is being waited for; -1: none. From any thread.
  int waiting_for() const { return waiting_for_.load(); }
  // The same, or the worker whose mail is being waited for; and how many messages have come.
  int awaited() const { return awaited_.load(); }
  std::uint64_t messages() const { return messages_.load(); }

 private:
  using Transfers = std::vector<std::unique_ptr<Transfer>>;
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  void meet(std::span<const Round> local, std::span<const std::byte> data);
  void take_mails();
  void await(Transfer& transfer, int worker);
  void await_sends();

  void run_small(std::span<const Round> local);
  std::span<const std::byte> small_data(std::span<const Round> local);
  void use_small_data(std::span<const Round> local);
  void run_sum(std::span<const Round> local);
  void run_all_gather(std::span<const Round> local);
  void run_broadcast(std::span<const Round> local);

  void receive_part(const Round& round, Slice own, std::size_t chunk);
  void add_chunk(std::span<const Round> local, Slice chunk, std::size_t number);
  // Adds up what lies in `sums_`, one for each worker with ranks, into this worker's.
  void add_workers(const Round& round, Slice slice);
  void send_chunk(int to, std::uint64_t tag, const Round& from, Slice slice);
  void receive_chunk(int from, std::uint64_t tag, const Round& to, Slice slice);
  std::byte* scratch(std::size_t peer, std::size_t chunk);
  std::span<const int> peers() const { return ranks_.peers(); }

  const WorkerRanks& ranks_;
  Wire& wire_;
  Mailboxes& mails_;
  CollectiveSite& site_;
  std::size_t me_ = 0;     // among the workers with ranks
  std::vector<int> ones_;  // a rank for each of them
  std::vector<Round> sums_;
  std::vector<Line> scratch_;
  Transfers sends_;
  Transfers parts_;    // received to be added: by chunk in the window, then by peer
  Transfers results_;  // received in place
  std::vector<std::byte> small_;
  std::atomic<int> waiting_for_ = -1;
  std::atomic<int> awaited_ = -1;
  std::atomic<std::uint64_t> messages_ = 0;
};

}  // namespace lockstep
