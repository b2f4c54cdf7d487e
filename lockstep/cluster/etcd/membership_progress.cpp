// How workers beside etcd notice that one of them is alive without progress. In a job that trains,
// nothing is written: only a worker that has made no progress for half of the limit says so in
// etcd, bound to its lease, and takes it back when it moves. If all workers have said so for the
// other half, they stand still, and whoever waits names the worker that it is because of: unless
// one of those records has changed by then, which etcd checks when it writes the failure.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/cluster/control/standstill.h"
#include "lockstep/cluster/etcd/membership_impl.h"

namespace lockstep {
namespace {

// The one that a worker waits for may change without anything having come.
bool has_moved(const WorkerProgress& from, const WorkerProgress& to) {
  return from.step != to.step || from.waiting != to.waiting || from.messages != to.messages ||
         from.activity != to.activity;
}

}  // namespace

void EtcdMembership::Impl::on_heartbeat(std::function<WorkerProgress()> f) {
  const std::lock_guard lock(ask_mutex_);
  ask_ = std::move(f);
}

std::optional<WorkerProgress> EtcdMembership::Impl::ask() const {
  const std::lock_guard lock(ask_mutex_);
  if (!ask_) return std::nullopt;
  return ask_();
}

void EtcdMembership::Impl::progress_loop() {
  const Clock::duration tick = std::clamp<Clock::duration>(
      options_.progress_timeout / 8, std::chrono::milliseconds(5), std::chrono::seconds(1));
  Lock lock(mutex_);
  while (!stopping_) {
    changed_.wait_for(lock, tick, [&] { return stopping_; });
    if (stopping_) return;
    look_at_progress(lock);
  }
}

void EtcdMembership::Impl::look_at_progress(Lock& lock) {
  lock.unlock();
  std::optional<WorkerProgress> progress = ask();
  lock.lock();
  const Time now = Clock::now();
  // Where this process itself stood still, it has not seen what the others did meanwhile.
  const bool paused = now - last_look_ > options_.progress_timeout / 2;
  last_look_ = now;
  if (paused) seen_.clear();
  if (!progress || generation == 0 || rejoining_ || lost_ || left_ || failure_) return;
  if (standing_.generation != generation)
    standing_ = {.generation = generation, .progress = {}, .since = now};
  if (paused || has_moved(standing_.progress, *progress)) standing_.since = now;
  standing_.progress = std::move(*progress);
  try {
    if (tell_standing(lock)) judge(Clock::now());
  } catch (const CommError&) {
    // The lease says when to give up.
  }
}

// Returns whether this worker stands still.
bool EtcdMembership::Impl::tell_standing(Lock& lock) {
  const Clock::duration still = Clock::now() - standing_.since;
  const bool stands = still > options_.progress_timeout / 2;
  if (stands == standing_.told) return stands;
  const std::uint64_t number = generation;
  const std::string key = keys_.still(number, worker);
  const StillRecord record{.progress = standing_.progress,
                           .still = std::chrono::duration_cast<std::chrono::milliseconds>(still)};
  etcdserverpb::TxnRequest request = fenced();
  *request.add_success() = stands ? put_key(key, to_text(record), lease_) : delete_keys(key, "");
  transact(lock, request, soon());
  if (standing_.generation == number) standing_.told = stands;
  return false;  // to be judged at the next look
}

void EtcdMembership::Impl::judge(Time now) {
  if (failure_ || lost_ || rejoining_ || reporting_ || !reports_.empty()) return;
  std::vector<Standing> workers;
  Report report{.generation = generation, .failure = {}, .cause = FailureCause::Stuck};
  for (int each = 0; each < static_cast<int>(members.size()); ++each) {
    const ControlMember& member = members[static_cast<std::size_t>(each)];
    Standing& standing = workers.emplace_back();
    standing.name = fmt::format("worker {} ({})", each, member.identity);
    standing.address = member.address;
    if (find(keys_.left(generation, each))) {
      standing.gone = standing.name + " has left";
      continue;
    }
    const std::string key = keys_.still(generation, each);
    const Entry* entry = find(key);
    const std::optional<StillRecord> record =
        entry != nullptr ? still_record(entry->value) : std::nullopt;
    if (!record) return;  // it moves
    Seen& seen = seen_[each];
    if (seen.modified != entry->modified) seen = {.modified = entry->modified, .since = now};
    standing.progress = record->progress;
    standing.still = record->still + (now - seen.since);
    const std::string& activity = record->progress.activity;
    if (!activity.empty()) standing.doing = fmt::format("; it was last in \"{}\"", activity);
    report.unless_changed.emplace_back(key, entry->modified);
  }
  const std::optional<Standstill> found =
      find_standstill(workers, options_.progress_timeout, "etcd");
  if (!found) return;
  report.failure = {.rank = found->worker, .kind = FailureKind::Comm, .message = found->message};
  queue_report(std::move(report));
}

}  // namespace lockstep
