// The lease of a worker, renewed by a thread of its own.
//
// etcd counts the lease from when it handled a renewal, which is after the renewal was sent. The
// worker counts from when it was sent, on its monotonic clock, and gives up a margin earlier. The
// margin also covers a change of etcd's leader: a leader that was cut off may still answer
// renewals for about a second, its election timeout, after another one was elected.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/cluster/control/text.h"
#include "lockstep/cluster/etcd/membership_impl.h"

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kLeasePause(20);

std::chrono::steady_clock::duration margin_of(std::chrono::seconds ttl) {
  return std::max<std::chrono::steady_clock::duration>(std::chrono::seconds(1), ttl / 4);
}

}  // namespace

void EtcdMembership::Impl::start_lease(Time deadline) {
  const EtcdClient::Granted granted = client_.grant(options_.lease_timeout, deadline);
  const std::lock_guard lock(mutex_);
  lease_ = granted.id;
  ttl_ = granted.ttl;
  renewed_ = granted.sent;
  lease_thread_ = std::thread([this] { lease_loop(); });
}

void EtcdMembership::Impl::lease_loop() {
  Lock lock(mutex_);
  std::string error = "etcd did not answer";
  bool failing = false;
  while (!stopping_ && !lost_) {
    const Time give_up = renewed_ + ttl_ - margin_of(ttl_);
    const Time next = failing ? Clock::now() + kLeasePause : renewed_ + Clock::duration(ttl_) / 5;
    changed_.wait_until(lock, std::min(next, give_up), [&] { return stopping_ || lost_; });
    if (stopping_ || lost_) return;
    if (Clock::now() >= give_up) {
      lose(fmt::format("it could not renew its lease of {} s for {}: {}", ttl_.count(),
                       shown(Clock::now() - renewed_), error));
      return;
    }
    lock.unlock();
    const Time sent = Clock::now();
    const EtcdClient::Renewal renewal = client_.renew(lease_, give_up);
    lock.lock();
    failing = !renewal.answered;
    if (failing) {
      error = renewal.error;
    } else if (renewal.ttl.count() == 0) {
      lose("its lease has ended at etcd");
    } else {
      renewed_ = sent;
      ttl_ = renewal.ttl;
    }
  }
}

// With the lock. Ends all that this worker does as a member.
void EtcdMembership::Impl::lose(const std::string& why) {
  if (lost_ || left_) return;
  lost_ = why;
  changed_.notify_all();
  if (generation == 0) return;
  note_failure(
      {.rank = worker,
       .kind = FailureKind::Comm,
       .message = fmt::format("worker {} ({}) stops itself, because others may take it for "
                              "dead: {} (etcd at {})",
                              worker, identity_, why, client_.name())});
}

}  // namespace lockstep
