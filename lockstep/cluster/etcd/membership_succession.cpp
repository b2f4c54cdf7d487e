// What comes after a failure: the members that are left begin the next generation by the job's
// policy. All of them propose one; etcd takes the first.
#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/cluster/etcd/membership_impl.h"

namespace lockstep {

bool EtcdMembership::Impl::goes_on() const {
  const std::uint64_t step = ask().value_or(WorkerProgress{}).step;
  const std::lock_guard lock(mutex_);
  if (options_.on_failure == OnFailure::Stop || lost_ || left_ || !failure_) return false;
  if (failure_->rank < 0) {  // the generation is over, because newcomers were admitted
    const std::optional<Newest> now = newest();
    return now && now->record.previous == generation &&
           std::ranges::find(now->record.places, worker) != now->record.places.end();
  }
  // Who failed itself has no place in what follows.
  if (failure_->rank == worker) return false;
  // A worker that has left has done its part: nobody would take its place again.
  for (int each = 0; each < static_cast<int>(members.size()); ++each) {
    const bool left = find(keys_.left(generation, each)) != nullptr;
    if (left && options_.on_failure == OnFailure::Restart) return false;
  }
  return may_go_on(options_.on_failure, *failure_, successor({}, step).failures);
}

GenerationRecord EtcdMembership::Impl::successor(const std::vector<int>& places,
                                                 std::uint64_t step) const {
  const bool new_step = step > record_.furthest;
  return {.previous = generation,
          .places = places,
          .furthest = std::max(step, record_.furthest),
          .failures = new_step ? 1 : record_.failures + 1};
}

int EtcdMembership::Impl::newcomers() const {
  const std::lock_guard lock(mutex_);
  const std::string prefix = keys_.newcomers();
  int count = 0;
  for (auto at = entries_.lower_bound(prefix);
       at != entries_.end() && at->first.starts_with(prefix); ++at) {
    ++count;
  }
  return count;
}

// Places for all members, and behind them for those who wait. Newcomers are no failure.
void EtcdMembership::Impl::admit() {
  const int waiting = newcomers();
  Lock lock(mutex_);
  if (options_.on_failure == OnFailure::Stop || waiting == 0 || worker != 0) return;
  const std::optional<Newest> now = newest();
  if (lost_ || left_ || failure_ || !now || now->record.number != generation) return;
  GenerationRecord next = record_;
  next.previous = generation;
  next.places.clear();
  for (int each = 0; each < static_cast<int>(members.size()); ++each) next.places.push_back(each);
  next.places.resize(next.places.size() + static_cast<std::size_t>(waiting), -1);
  open_generation(lock, now, std::move(next), soon(), /*unless_failed=*/true);
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

// Whether the newest generation, which follows this one, has these places.
bool EtcdMembership::Impl::is_begun(const std::vector<int>& places) const {
  const std::lock_guard lock(mutex_);
  const std::optional<Newest> now = newest();
  return now && now->record.number > generation && now->record.places == places;
}

// Where one of the others has ended, too, the generation does not form until its lease has ended;
// then another one is begun without it.
void EtcdMembership::Impl::succeed(std::chrono::milliseconds timeout) {
  if (options_.on_failure == OnFailure::Stop) return rejoin(timeout);
  const Time deadline = Clock::now() + timeout;
  for (;;) {
    const std::vector<int> next = successors();
    if (!is_begun(next)) propose(next);
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
