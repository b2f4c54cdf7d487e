// FirstFailure: what the ranks of one process know about the failure of their group.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "lockstep/comm/failure.h"

namespace lockstep {

// From any thread.
class FirstFailure {
 public:
  // Keeps the first one; whether this was it.
  bool set(const Failure& failure) {
    const std::lock_guard lock(mutex_);
    if (first_) return false;
    first_ = failure;
    failed_ = true;
    return true;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    failed_ = false;
    first_.reset();
  }
  bool failed() const { return failed_; }
  std::optional<Failure> get() const {
    const std::lock_guard lock(mutex_);
    return first_;
  }

 private:
  std::atomic<bool> failed_ = false;
  mutable std::mutex mutex_;
  std::optional<Failure> first_;
};

}  // namespace lockstep
