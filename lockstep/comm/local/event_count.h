// EventCount: waits for a condition that other threads or processes make true, at no cost to them
// while nobody sleeps.
//
// A waiter first spins, then yields its core between checks, and finally sleeps on a futex. The
// thread that makes the condition true calls notify(), which enters the kernel only if somebody
// sleeps. No wake-up is lost: a sleeper increments the count of sleepers before it checks once
// more, and the notifier reads that count after its own store; as all four operations are
// sequentially consistent, one of them sees the other. A sleeper whose check fails sleeps on the
// number it read before; notify() has changed it by then, or wakes it.
//
// It consists of plain words that may be in memory mapped by several processes, all zero at first.
// A process that dies asleep leaves the count of sleepers too high, which costs the others system
// calls and nothing else.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

#include "lockstep/base/pause.h"

namespace lockstep {

// How long to wait in which way before sleeping.
struct SpinPolicy {
  int spins = 0;
  std::chrono::microseconds yielding{0};
};

class EventCount {
 public:
  using Clock = std::chrono::steady_clock;

  // Blocks until `ready` holds; false if `timeout` passes first. `ready` loads what notifiers
  // store, both sequentially consistent, and does not throw.
  template <class Ready>
  bool await(const Ready& ready, Clock::duration timeout, SpinPolicy policy) {
    for (int i = 0; i < policy.spins; ++i) {
      if (ready()) return true;
      pause_core();
    }
    const Clock::time_point begin = Clock::now();
    const Clock::time_point sleep_at = begin + policy.yielding;
    do {
      if (ready()) return true;
      sched_yield();
    } while (Clock::now() < sleep_at);
    sleepers_.fetch_add(1);
    const bool result = sleep_until(ready, begin + timeout);
    sleepers_.fetch_sub(1);
    return result;
  }

  // Call after the store that may have made a condition true.
  void notify() {
    if (sleepers_.load() == 0) return;
    changes_.fetch_add(1);
    futex(FUTEX_WAKE, INT_MAX, nullptr);
  }

 private:
  template <class Ready>
  bool sleep_until(const Ready& ready, Clock::time_point end) {
    for (;;) {
      const std::uint32_t seen = changes_.load();
      if (ready()) return true;
      const auto left = std::chrono::nanoseconds(end - Clock::now()).count();
      if (left <= 0) return false;
      const timespec wait{.tv_sec = static_cast<std::time_t>(left / 1'000'000'000),
                          .tv_nsec = static_cast<long>(left % 1'000'000'000)};
      futex(FUTEX_WAIT, seen, &wait);
    }
  }

  // Shared, not PRIVATE: the sleepers may be in other processes.
  void futex(int operation, std::uint32_t value, const timespec* timeout) {
    static_assert(sizeof(changes_) == sizeof(std::uint32_t) &&
                  decltype(changes_)::is_always_lock_free);
    syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&changes_), operation, value, timeout,
            nullptr, 0);
  }

  std::atomic<std::uint32_t> sleepers_ = 0;
  std::atomic<std::uint32_t> changes_ = 0;
};

}  // namespace lockstep
