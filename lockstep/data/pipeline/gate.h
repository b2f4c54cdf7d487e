// Gate: lets an owner that is being destroyed stop its work on other threads. Once the gate is
// shut, queued work does nothing; shut() waits for work that is already running.
#pragma once

#include <condition_variable>
#include <mutex>

namespace lockstep {

class Gate {
 public:
  // False once the gate is shut.
  bool enter() {
    std::lock_guard lock(mutex_);
    if (shut_) return false;
    ++inside_;
    return true;
  }
  void leave() {
    std::lock_guard lock(mutex_);
    if (--inside_ == 0) empty_.notify_all();
  }
  void shut() {
    std::unique_lock lock(mutex_);
    shut_ = true;
    empty_.wait(lock, [&] { return inside_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable empty_;
  int inside_ = 0;
  bool shut_ = false;
};

}  // namespace lockstep
