#include "lockstep/comm/remote/remote_group.h"

#include <omp.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <thread>

#include "lockstep/comm/local/host_communicator.h"
#include "lockstep/comm/local/rendezvous.h"
#include "lockstep/comm/remote/mailboxes.h"
#include "lockstep/comm/remote/worker_collectives.h"
#include "lockstep/comm/remote/worker_ranks.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// While the communication thread waits for the ranks of its worker, which compute: it leaves them
// the cores.
constexpr SpinPolicy kForRanks{.spins = 0, .yielding = 20us};
constexpr std::chrono::milliseconds kLookAtWorkers = 100ms;
// How long a worker that leaves tries to say so, and waits for the others' last words.
constexpr std::chrono::milliseconds kSayLast = 1s;
constexpr std::chrono::milliseconds kHearLast = 2s;
// After a failure some may no longer be able to.
constexpr std::chrono::milliseconds kHearLastOfFailure = 500ms;

struct alignas(64) MeetingLine {
  std::byte bytes[64] = {};
};

// Why the communication thread ends.
struct Stopped {};
struct Failed {
  Failure failure;
};

// FNV-1a.
std::uint64_t digest_of(const RemoteGroupOptions& options) {
  std::string all;
  for (const std::string& name : options.names) all += name + '\n';
  for (const int ranks : options.ranks_of_worker) all += std::to_string(ranks) + ' ';
  std::uint64_t digest = 0xCBF29CE484222325;
  for (const char byte : all) {
    digest = (digest ^ static_cast<std::uint8_t>(byte)) * 0x100000001B3;
  }
  return digest;
}

void check(const RemoteGroupOptions& options) {
  const std::vector<int>& counts = options.ranks_of_worker;
  require(options.make_wire != nullptr, "[comm] a group of workers needs a wire between them");
  require(options.timeout.count() > 0, "[comm] a group's timeout must be positive, not {} ms",
          options.timeout.count());
  for (const int count : counts) {
    require(count >= 0, "[comm] a worker cannot hold {} ranks", count);
  }
  const int ranks = std::accumulate(counts.begin(), counts.end(), 0);
  require(ranks > 0 && std::ssize(options.names) == ranks,
          "[comm] a group of workers with {} ranks was given {} names", ranks,
          options.names.size());
}

// A rank of this worker. It only says what it brings, and waits.
class RemoteRank final : public HostRank {
 public:
  RemoteRank(Rendezvous& rendezvous, int rank, EventCount& started)
      : rendezvous_(rendezvous), rank_(rank), mine_(rendezvous.counts(rank)), started_(started) {}

  std::uint64_t start(const Round& round) override {
    const std::uint64_t number = mine_.started.load();
    if (number - mine_.done.load() == Rendezvous::kSlots) {
      fail_for_too_many(rendezvous_, rank_, round);
    }
    Round& kept = this->round(number);
    kept = round;
    kept.collective = number;
    rendezvous_.publish(rank_, &RankCounts::started, number + 1);
    started_.notify();
    return number;
  }
  bool poll(std::uint64_t number) override { return over(number); }
  void await_ranks(std::uint64_t number) override {
    await(number, [&] { return rendezvous_.all_at(&RankCounts::started, number + 1); });
  }
  void finish(std::uint64_t number) override {
    await(number, [&] { return over(number); });
  }

 private:
  Round& round(std::uint64_t number) {
    return rendezvous_.rounds(number)[static_cast<std::size_t>(rank_)];
  }
  bool over(std::uint64_t number) const { return mine_.done.load() > number; }
  template <class Ready>
  void await(std::uint64_t number, const Ready& ready) {
    if (over(number)) return;
    rendezvous_.await(rank_, round(number), number, ready);
  }

  Rendezvous& rendezvous_;
  int rank_;
  RankCounts& mine_;
  EventCount& started_;
};

}  // namespace

struct RemoteGroup::Parts final : RendezvousSite, CollectiveSite {
  explicit Parts(RemoteGroupOptions given);
  ~Parts() override { stop_thread(true); }

  // A wire and what needs it, for one generation.
  struct Connection {
    Connection(Parts& parts, std::uint64_t generation);
    std::unique_ptr<Wire> wire;
    Mailboxes mails;
    std::optional<WorkerCollectives> collectives;
  };

  int first() const { return ranks->first(ranks->worker()); }
  int count() const { return ranks->count(ranks->worker()); }
  std::string names_of(int worker) const;
  void say_hello(Connection& connection);
  void connect(std::unique_ptr<Connection> next);
  void stop_thread(bool leave);
  void reset();

  // On the communication thread.
  void communicate();
  void run_collectives();
  void await_ranks();
  void run_next();
  Failure failure_of_lost(const LostWorker& lost);
  void look() override;
  void met(int worker, const MailHead& mail) override;
  void all_met() override;

  void do_slice(std::span<const Round>, std::uint64_t, int) noexcept override {}
  void on_abort() noexcept override;
  std::vector<int> find_slow(std::uint64_t number) override;

  const RemoteGroupOptions options;
  std::vector<MeetingLine> memory;
  EventCount started;
  Rendezvous rendezvous;
  std::optional<WorkerRanks> ranks;
  std::vector<int> local;
  std::vector<std::unique_ptr<RemoteRank>> rounds;
  std::vector<std::unique_ptr<HostCommunicator>> communicators;

  std::uint64_t generation = 0;
  std::mutex connection_mutex;  // guards the pointer, which is replaced while no thread runs
  std::unique_ptr<Connection> connection;
  std::atomic<bool> stop = false;
  bool leave = false;      // whether the thread tells the others that this worker leaves
  std::uint64_t next = 0;  // collective
  std::thread thread;
};

RemoteGroup::Parts::Connection::Connection(Parts& parts, std::uint64_t generation)
    : wire(parts.options.make_wire(generation)), mails(*wire) {
  const auto workers = std::ssize(parts.options.ranks_of_worker);
  require(workers == wire->workers(), "[comm] a group of {} workers was given the ranks of {}",
          wire->workers(), workers);
}

RemoteGroup::Parts::Parts(RemoteGroupOptions given)
    : options(std::move(given)),
      memory(Meeting::bytes(static_cast<int>(options.names.size()), 1) / sizeof(MeetingLine) + 1),
      rendezvous({.names = options.names,
                  .timeout = options.timeout,
                  .between_processes = true,
                  .by_one_thread = true},
                 Meeting(memory.front().bytes, static_cast<int>(options.names.size()), 1), *this) {
  auto made = std::make_unique<Connection>(*this, generation);
  ranks.emplace(options.ranks_of_worker, made->wire->worker());
  local.resize(static_cast<std::size_t>(count()));
  std::iota(local.begin(), local.end(), first());
  for (const int rank : local) {
    rounds.push_back(std::make_unique<RemoteRank>(rendezvous, rank, started));
    communicators.push_back(std::make_unique<HostCommunicator>(rendezvous, rank, *rounds.back()));
  }
  connect(std::move(made));
}

std::string RemoteGroup::Parts::names_of(int worker) const {
  std::string names;
  for (int i = 0; i < ranks->count(worker); ++i) {
    names += (i > 0 ? ", " : "") + rendezvous.name(ranks->first(worker) + i);
  }
  return names.empty() ? "no ranks" : names;
}

// The others are connected; here they say that they make the same group.
void RemoteGroup::Parts::say_hello(Connection& made) {
  const auto end = Mailboxes::Clock::now() + options.timeout;
  int waiting_for = 0;
  const auto look = [&] {
    if (Mailboxes::Clock::now() < end) return;
    fail<CommError>("[comm] worker {} has waited {} ms for worker {} ({}) to make the group",
                    ranks->worker(), options.timeout.count(), waiting_for, names_of(waiting_for));
  };
  std::vector<int> others;
  for (int worker = 0; worker < ranks->workers(); ++worker) {
    if (worker != ranks->worker()) others.push_back(worker);
  }
  const std::uint64_t digest = digest_of(options);
  made.mails.send({.kind = MailKind::Hello, .digest = digest}, {}, others, look);
  for (const int worker : others) {
    waiting_for = worker;
    made.mails.await(worker, look);
  }
  for (const int worker : others) {
    const MailHead& mail = made.mails.await(worker, look);
    if (mail.kind == MailKind::Hello && mail.digest == digest) {
      made.mails.take(worker);
      continue;
    }
    // All are to read this worker's mail before the connection is closed.
    made.mails.send_last(std::nullopt, kSayLast);
    made.mails.await_last(kHearLastOfFailure);
    fail<UsageError>(
        "[comm] workers {} and {} make different groups: the names of the ranks and the number of "
        "ranks of each worker must be the same in all workers",
        ranks->worker(), worker);
  }
}

void RemoteGroup::Parts::connect(std::unique_ptr<Connection> made) {
  try {
    say_hello(*made);
  } catch (const LostWorker& lost) {
    throw CommError(failure_of_lost(lost).message);
  }
  made->collectives.emplace(*ranks, *made->wire, made->mails, *this);
  {
    const std::lock_guard lock(connection_mutex);
    connection = std::move(made);
  }
  stop = leave = false;
  next = 0;
  thread = std::thread([this] { communicate(); });
}

void RemoteGroup::Parts::stop_thread(bool leave_group) {
  if (!thread.joinable()) return;
  leave = leave_group;
  stop = true;
  on_abort();
  thread.join();
}

// The old connection is kept until all have come to the new one: others may still be receiving.
void RemoteGroup::Parts::reset() {
  stop_thread(false);
  try {
    auto made = std::make_unique<Connection>(*this, ++generation);
    std::vector<int> all(static_cast<std::size_t>(rendezvous.size()));
    std::iota(all.begin(), all.end(), 0);
    rendezvous.reset(all);
    connect(std::move(made));
  } catch (const std::exception&) {
    rendezvous.record(failure_of(-1, std::current_exception()));
    throw;
  }
}

void RemoteGroup::Parts::on_abort() noexcept {
  {
    const std::lock_guard lock(connection_mutex);
    if (connection) connection->wire->interrupt();
  }
  started.notify();
}

std::vector<int> RemoteGroup::Parts::find_slow(std::uint64_t) {
  const std::lock_guard lock(connection_mutex);
  const int worker = connection->collectives->waiting_for();
  std::vector<int> slow(worker < 0 ? 0u : static_cast<std::size_t>(ranks->count(worker)));
  if (worker >= 0) std::iota(slow.begin(), slow.end(), ranks->first(worker));
  return slow;
}

void RemoteGroup::Parts::communicate() {
  omp_set_num_threads(1);  // the cores are for the ranks
  try {
    run_collectives();
  } catch (const Stopped&) {
  } catch (const Failed& failed) {
    rendezvous.record(failed.failure);
  } catch (const LostWorker& lost) {
    rendezvous.record(failure_of_lost(lost));
  } catch (const std::exception&) {
    rendezvous.record(failure_of(first(), std::current_exception()));
  }
  // The others are told first: a connection on which a message was given up may be of no more use.
  const std::optional<Failure> failure = rendezvous.failure();
  const bool last = failure || leave;
  if (last) connection->mails.send_last(failure, kSayLast);
  connection->collectives->drop();
  for (const int rank : local) {
    RankCounts& counts = rendezvous.counts(rank);
    counts.claimed.store(counts.done.load());
  }
  if (last) connection->mails.await_last(failure ? kHearLastOfFailure : kHearLast);
}

void RemoteGroup::Parts::run_collectives() {
  for (;; ++next) {
    await_ranks();
    run_next();
  }
}

void RemoteGroup::Parts::await_ranks() {
  const auto all_started = [&] {
    return !local.empty() && std::ranges::all_of(local, [&](int rank) {
      return rendezvous.counts(rank).started.load() > next;
    });
  };
  const auto ready = [&] { return stop || rendezvous.aborted() || all_started(); };
  while (!started.await(ready, kLookAtWorkers, kForRanks)) look();
  if (!all_started()) look();
}

// A worker that leaves an idle group, or one that is done with it, is no failure.
void RemoteGroup::Parts::look() {
  if (rendezvous.aborted()) throw Failed{*rendezvous.failure()};
  if (stop) throw Stopped();
  for (int worker = 0; worker < ranks->workers(); ++worker) {
    if (worker == ranks->worker()) continue;
    if (const auto failure = connection->mails.look(worker)) throw Failed{*failure};
  }
}

void RemoteGroup::Parts::run_next() {
  for (const int rank : local) rendezvous.counts(rank).claimed.store(next + 1);
  if (rendezvous.aborted()) throw Failed{*rendezvous.failure()};
  if (const auto failure = rendezvous.disagreement(next, first(), count())) throw Failed{*failure};
  connection->collectives->run(rendezvous.rounds(next).subspan(static_cast<std::size_t>(first()),
                                                               static_cast<std::size_t>(count())));
  // The ranks of this worker last: they wait for their own count.
  for (int rank = 0; rank < rendezvous.size(); ++rank) {
    const bool own = rank >= first() && rank < first() + count();
    if (!own) rendezvous.counts(rank).done.store(next + 1);
  }
  for (const int rank : local) rendezvous.publish(rank, &RankCounts::done, next + 1);
}

void RemoteGroup::Parts::met(int worker, const MailHead& mail) {
  if (mail.kind == MailKind::Failure) throw Failed{*connection->mails.look(worker)};
  const Round& mine = rendezvous.rounds(next)[static_cast<std::size_t>(first())];
  if (mail.kind == MailKind::Goodbye) {
    throw Failed{{.rank = ranks->first(worker),
                  .kind = FailureKind::Comm,
                  .message = fmt::format("[comm] worker {} has left the group, and with it {}; {} "
                                         "starts {} (collective {})",
                                         worker, names_of(worker), names_of(ranks->worker()),
                                         rendezvous.describe(mine), next)}};
  }
  ensure(mail.kind == MailKind::Collective && mail.collective == next,
         "[comm] collective {}: worker {} sent its mail {}", next, worker, mail.collective);
  for (int i = 0; i < ranks->count(worker); ++i) {
    const int rank = ranks->first(worker) + i;
    rendezvous.rounds(next)[static_cast<std::size_t>(rank)] = {.kind = mail.what,
                                                               .dtype = mail.dtype,
                                                               .root = mail.root,
                                                               .bytes = mail.collective_bytes,
                                                               .collective = next};
    rendezvous.publish(rank, &RankCounts::started, next + 1);
  }
}

void RemoteGroup::Parts::all_met() {
  if (const auto failure = rendezvous.disagreement(next, 0, rendezvous.size())) {
    throw Failed{*failure};
  }
}

// A worker that has sent its last words has closed the connection because of them.
Failure RemoteGroup::Parts::failure_of_lost(const LostWorker& lost) {
  try {
    if (connection) {
      if (const auto failure = connection->mails.look(lost.worker())) return *failure;
    }
  } catch (const LostWorker&) {
  }
  return {
      .rank = ranks->count(lost.worker()) > 0 ? ranks->first(lost.worker()) : -1,
      .kind = FailureKind::Comm,
      .message = fmt::format("[comm] worker {} has ended or cannot be reached, and with it {}: {}",
                             lost.worker(), names_of(lost.worker()), lost.what())};
}

RemoteGroup::RemoteGroup(RemoteGroupOptions options) {
  check(options);
  parts_ = std::make_unique<Parts>(std::move(options));
}

RemoteGroup::~RemoteGroup() = default;

int RemoteGroup::size() const {
  return parts_->rendezvous.size();
}

std::span<const int> RemoteGroup::local() const {
  return parts_->local;
}

Communicator& RemoteGroup::rank(int rank) {
  require(rank >= 0 && rank < size(), "[comm] rank {} of a group with ranks 0 to {}", rank,
          size() - 1);
  const auto found = std::ranges::find(parts_->local, rank);
  require(found != parts_->local.end(),
          "[comm] rank {} ({}) is another worker's; this one, worker {}, has {}", rank,
          parts_->rendezvous.name(rank), parts_->ranks->worker(),
          parts_->names_of(parts_->ranks->worker()));
  return *parts_->communicators[static_cast<std::size_t>(found - parts_->local.begin())];
}

bool RemoteGroup::waiting() const {
  return parts_->rendezvous.waiting();
}

Group::Awaited RemoteGroup::awaited() const {
  const std::lock_guard lock(parts_->connection_mutex);
  if (parts_->connection == nullptr || !parts_->connection->collectives) return {};
  const WorkerCollectives& collectives = *parts_->connection->collectives;
  return {.worker = collectives.awaited(), .messages = collectives.messages()};
}

void RemoteGroup::abort(const Failure& failure) {
  parts_->rendezvous.abort(failure);
}

std::optional<Failure> RemoteGroup::failure() const {
  return parts_->rendezvous.failure();
}

void RemoteGroup::reset() {
  parts_->reset();
}

}  // namespace lockstep
