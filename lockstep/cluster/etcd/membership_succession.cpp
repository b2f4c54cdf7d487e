// What comes after a failure: the members that are left begin the next generation by the job's
// policy. All of them propose one; etcd takes the first.
#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/cluster/etcd/membership_impl.h"

namespace lockstep {

bool EtcdMembership::Impl::goes_on() const {
  const std::lock_guard lock(mutex_);
  if (options_.on_failure == OnFailure::Stop || lost_ || left_ || !failure_) return false;
  // A program that is wrong stays wrong; and who failed itself has no place in what follows.
  return failure_->kind != FailureKind::Usage && failure_->rank >= 0 && failure_->rank != worker;
}

// By place: the worker of the present generation that takes it, or -1 for a newcomer. Whose lease
// has ended is gone.
std::vector<int> EtcdMembership::Impl::successors() const {
  const std::lock_guard lock(mutex_);
  std::vector<int> next;
  for (int each = 0; each < static_cast<int>(members.size()); ++each) {
    const bool failed = failure_ && failure_->rank == each;
    const bool here = !failed && find(keys_.member(generation, each)) != nullptr;
    if (here) {
      next.push_back(each);
    } else if (options_.on_failure == OnFailure::Restart) {
      next.push_back(-1);
    }
  }
  return next;
}

// Whether the others go on without this worker, or it is no member any more.
bool EtcdMembership::Impl::is_left_out() const {
  const std::lock_guard lock(mutex_);
  const std::optional<Newest> now = newest();
  if (lost_ || !now || now->record.number <= generation) return lost_.has_value();
  return now->record.previous != generation || find(keys_.formed(now->record.number)) != nullptr ||
         std::ranges::find(now->record.places, worker) == now->record.places.end();
}

// Where one of the others has ended, too, the generation does not form until its lease has ended;
// then another one is begun without it.
void EtcdMembership::Impl::succeed(std::chrono::milliseconds timeout) {
  if (options_.on_failure == OnFailure::Stop) return rejoin(timeout);
  const Time deadline = Clock::now() + timeout;
  std::vector<int> before;
  for (;;) {
    const std::vector<int> next = successors();
    if (next != before) propose(next);
    before = next;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    try {
      return rejoin(std::min<std::chrono::milliseconds>(left, ttl_ + std::chrono::seconds(2)));
    } catch (const CommError&) {
      if (Clock::now() >= deadline || is_left_out()) throw;
    }
  }
}

}  // namespace lockstep
