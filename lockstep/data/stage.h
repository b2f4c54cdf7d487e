// What one stage of a running pipeline has done so far. Many threads add to it; reading it while
// they do gives figures of about now.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/profile/recorder.h"

namespace lockstep {

// Something that went wrong and was passed over, as `on_error = skip` asks.
struct Skipped {
  std::string stage;
  std::string what;  // with file and record
};

class Stage {
 public:
  explicit Stage(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  std::string key;  // its place in the pipeline; empty where it has none of its own

  std::atomic<std::int64_t> items = 0;
  std::atomic<std::int64_t> made = 0;  // by its threads, given out or not yet
  std::atomic<std::int64_t> bytes = 0;
  std::atomic<std::int64_t> busy_ns = 0;  // of all threads, without what its inputs took
  // Of the threads that read several inputs of it at once (interleave), with what those took.
  std::atomic<std::int64_t> reading_ns = 0;
  std::atomic<std::int64_t> wait_ns = 0;  // how long whoever asked for an element stood and waited
  std::atomic<int> threads = 1;           // that may work on it at once

  // A queue in front of the consumer: how full it was whenever something was taken out.
  std::atomic<std::int64_t> capacity = 0;  // 0: there is none
  std::atomic<std::int64_t> fill_sum = 0;
  std::atomic<std::int64_t> fills = 0;

  void filled(std::size_t count) {
    fill_sum.fetch_add(static_cast<std::int64_t>(count), std::memory_order_relaxed);
    fills.fetch_add(1, std::memory_order_relaxed);
  }

  // What the tuner chose and why, in its words; one line for each change, the last ones.
  void decided(std::string text);
  std::vector<std::string> decisions() const;

  // A sentence that its user should know of; said once, however often it is noted.
  void noted(std::string text);
  std::vector<std::string> notes() const;

 private:
  static constexpr std::size_t kMostDecisions = 32;
  static constexpr std::size_t kMostNotes = 8;

  std::string name_;
  mutable std::mutex mutex_;
  std::vector<std::string> decisions_;
  std::vector<std::string> notes_;
};

// Times the work of a stage on this thread: from its construction to its end, without the timers
// that are made in between (those of the stages it asks). Of no stage, it keeps the time that it
// takes from being counted as anybody's work.
class StageTimer {
 public:
  explicit StageTimer(Stage* stage) : stage_(stage), outer_(innermost), begin_ns_(now_ns()) {
    if (outer_ != nullptr) outer_->busy_ns_ += begin_ns_ - outer_->begin_ns_;
    innermost = this;
  }
  ~StageTimer() {
    const std::int64_t end = now_ns();
    if (stage_ != nullptr) {
      stage_->busy_ns.fetch_add(busy_ns_ + end - begin_ns_, std::memory_order_relaxed);
    }
    if (outer_ != nullptr) outer_->begin_ns_ = end;
    innermost = outer_;
  }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;

  std::int64_t begin_ns() const { return begin_ns_; }

 private:
  // Scopes nest on their thread, whichever pipelines they belong to.
  static inline thread_local StageTimer* innermost = nullptr;

  Stage* stage_;
  StageTimer* outer_;
  std::int64_t begin_ns_;  // since when this one counts
  std::int64_t busy_ns_ = 0;
};

// Times a wait for an element of a stage: no work of anybody's.
class WaitTimer {
 public:
  explicit WaitTimer(Stage& stage) : stage_(stage), begin_ns_(now_ns()) {}
  ~WaitTimer() { stage_.wait_ns.fetch_add(now_ns() - begin_ns_, std::memory_order_relaxed); }
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;

 private:
  StageTimer nobody_{nullptr};
  Stage& stage_;
  std::int64_t begin_ns_;
};

}  // namespace lockstep
