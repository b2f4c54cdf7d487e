// The statistics of one stage of a running pipeline. Many threads update them; figures read
// meanwhile are approximate.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/profile/recorder.h"

namespace lockstep {

// An error that was skipped because of `on_error = skip`.
struct Skipped {
  std::string stage;
  std::string what;  // with file and record
};

class Stage {
 public:
  explicit Stage(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  std::string key;  // its path in the pipeline; empty for data sets that interleave opens

  std::atomic<std::int64_t> items = 0;
  std::atomic<std::int64_t> made = 0;  // produced by its threads, returned or not
  std::atomic<std::int64_t> bytes = 0;
  std::atomic<std::int64_t> busy_ns = 0;  // summed over threads, without its inputs
  // Busy time of the threads that read several inputs at once (interleave), including those inputs.
  std::atomic<std::int64_t> reading_ns = 0;
  std::atomic<std::int64_t> wait_ns = 0;  // how long its consumer waited for elements
  std::atomic<int> threads = 1;           // that may work on it at once

  // Its output queue: how full it was whenever an element was taken.
  std::atomic<std::int64_t> capacity = 0;  // 0: it has none
  std::atomic<std::int64_t> fill_sum = 0;
  std::atomic<std::int64_t> fills = 0;

  void filled(std::size_t count) {
    fill_sum.fetch_add(static_cast<std::int64_t>(count), std::memory_order_relaxed);
    fills.fetch_add(1, std::memory_order_relaxed);
  }

  // What the tuner chose and why: one line per change; only the latest are kept.
  void decided(std::string text);
  std::vector<std::string> decisions() const;

  // A sentence for the user; repeats are dropped.
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

// Times the work of a stage on this thread, from construction to destruction, excluding the timers
// nested in it (those of its inputs). With a null stage, the time counts for no stage.
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
  // Timers nest per thread, even across pipelines.
  static inline thread_local StageTimer* innermost = nullptr;

  Stage* stage_;
  StageTimer* outer_;
  std::int64_t begin_ns_;  // since when this timer is the innermost
  std::int64_t busy_ns_ = 0;
};

// Times a wait for an element of a stage; it counts as work of no stage.
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
