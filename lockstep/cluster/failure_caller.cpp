#include "lockstep/cluster/failure_caller.h"

#include <utility>

namespace lockstep {

FailureCaller::FailureCaller() : thread_([this] { loop(); }) {}

void FailureCaller::set(std::function<void(const Failure&)> f) {
  std::unique_lock lock(mutex_);
  callback_ = std::move(f);
  told_ = false;
  changed_.notify_all();
  if (std::this_thread::get_id() == thread_.get_id()) return;
  changed_.wait(lock, [&] { return !calling_; });
}

void FailureCaller::tell(const Failure& failure) {
  const std::lock_guard lock(mutex_);
  if (failure_) return;
  failure_ = failure;
  changed_.notify_all();
}

void FailureCaller::reset() {
  const std::lock_guard lock(mutex_);
  failure_.reset();
  told_ = false;
}

void FailureCaller::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void FailureCaller::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || (callback_ && failure_ && !told_); });
    if (stopping_) return;
    told_ = true;
    calling_ = true;
    const auto callback = callback_;
    const Failure failure = *failure_;
    lock.unlock();
    callback(failure);
    lock.lock();
    calling_ = false;
    changed_.notify_all();
  }
}

}  // namespace lockstep
