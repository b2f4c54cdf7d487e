// EventCount: waiting for something that other threads make true, at no cost to them while nobody
// sleeps.
//
// Whoever waits looks for a while without giving up its core, then looks in between letting others
// run, and sleeps at last. Whoever makes the condition true says so with notify(), which takes the
// mutex only where somebody sleeps. Nothing is lost between the two: the sleeper counts itself
// before it looks once more, and the other looks at that count behind its own store; as all four
// are sequentially consistent, one of them sees the other.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>

namespace lockstep {

// Tells the core that a loop waits for another one.
inline void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// How long to wait in which way before sleeping.
struct Patience {
  int spins = 0;
  std::chrono::microseconds yielding{0};
};

class EventCount {
 public:
  using Clock = std::chrono::steady_clock;

  // Waits until `ready` holds; false where `timeout` has passed first. `ready` loads what notifiers
  // store, both sequentially consistent, and does not throw.
  template <class Ready>
  bool await(const Ready& ready, Clock::duration timeout, Patience patience) {
    for (int i = 0; i < patience.spins; ++i) {
      if (ready()) return true;
      pause_core();
    }
    const Clock::time_point begin = Clock::now();
    const Clock::time_point sleep_at = begin + patience.yielding;
    do {
      if (ready()) return true;
      sched_yield();
    } while (Clock::now() < sleep_at);
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    const bool result = woken_.wait_until(lock, begin + timeout, ready);
    sleepers_.fetch_sub(1);
    return result;
  }

  // Behind the store that may have made somebody's condition true.
  void notify() {
    if (sleepers_.load() == 0) return;
    { std::lock_guard lock(mutex_); }  // whoever has looked in vain is asleep by now
    woken_.notify_all();
  }

 private:
  std::atomic<int> sleepers_ = 0;
  std::mutex mutex_;
  std::condition_variable woken_;
};

}  // namespace lockstep
