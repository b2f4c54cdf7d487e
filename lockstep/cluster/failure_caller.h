// FailureCaller: the thread of a membership that calls its user's failure callback, once for each
// failure (Membership::on_failure).
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "lockstep/comm/failure.h"

namespace lockstep {

class FailureCaller {
 public:
  FailureCaller();
  ~FailureCaller() { stop(); }
  FailureCaller(const FailureCaller&) = delete;
  FailureCaller& operator=(const FailureCaller&) = delete;

  // From now on calls `f`: at once if there is a failure. Returns when no call of the function
  // before is in progress, unless that one called this. Hold no lock that a callback may take.
  void set(std::function<void(const Failure&)> f);
  // There is a failure; the first one counts. Does not wait, so locks may be held.
  void tell(const Failure& failure);
  // There is none any more: a new generation has begun.
  void reset();
  // Returns when no call is in progress; none begins afterwards.
  void stop();

 private:
  void loop();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Failure> failure_;
  std::function<void(const Failure&)> callback_;
  bool told_ = false;
  bool calling_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep
