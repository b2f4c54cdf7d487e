// How long a thread has waited so far, including a wait in progress.
#pragma once

#include <cstdint>
#include <mutex>

namespace lockstep {

// One thread waits, any thread reads. One lock guards both numbers: otherwise a reader could count
// a wait that just ended twice or not at all.
class WaitClock {
 public:
  void begin(std::int64_t now) {
    std::lock_guard lock(mutex_);
    since_ns_ = now;
    waits_ = true;
  }
  void end(std::int64_t now) {
    std::lock_guard lock(mutex_);
    if (waits_) ended_ns_ += now - since_ns_;
    waits_ = false;
  }

  // Time in waits that have ended.
  std::int64_t ended() const {
    std::lock_guard lock(mutex_);
    return ended_ns_;
  }
  // The same plus the wait in progress until now.
  std::int64_t until(std::int64_t now) const {
    std::lock_guard lock(mutex_);
    return ended_ns_ + (waits_ && since_ns_ < now ? now - since_ns_ : 0);
  }

 private:
  mutable std::mutex mutex_;
  bool waits_ = false;
  std::int64_t since_ns_ = 0;  // when the current wait began
  std::int64_t ended_ns_ = 0;
};

}  // namespace lockstep
