#include "lockstep/data/pipeline/tuner.h"

#include <algorithm>
#include <cmath>

#include "lockstep/data/dataset.h"

namespace lockstep {
namespace {

constexpr std::int64_t kLookEvery = 50'000'000;       // ns
constexpr std::int64_t kLeastItems = 8;               // fewer are not enough to judge
constexpr double kConsumerWaits = 0.02;               // of the time: worth more threads
constexpr double kConsumerOnlyWaits = 0.5;            // of the time
constexpr double kThreadsBusy = 0.75;                 // of their time busy
constexpr double kHeadroom = 1.3;                     // over what is needed, before one is removed
constexpr std::int64_t kSettledFor = 30'000'000'000;  // ns
constexpr std::int64_t kNoMoreFor = 1'000'000'000;    // ns
// The first estimate needs this many elements, or this much busy time.
constexpr std::int64_t kFirstItems = 3;
constexpr std::int64_t kFirstBusy = 5'000'000;  // ns
// Busy time per element that justifies one more thread (ns): taking an element from the input and
// passing it to the consumer is serial and takes about 2 µs.
constexpr std::int64_t kWorthAThread = 5'000;
constexpr std::size_t kFirstBuffer = 2;
constexpr std::size_t kMostBuffer = 256;

}  // namespace

ThreadTuner::ThreadTuner(Runtime& runtime, Stage& stage, const std::atomic<std::int64_t>& busy_ns,
                         int threads, std::int64_t now)
    : runtime_(runtime),
      stage_(stage),
      busy_ns_(busy_ns),
      tunes_(threads == AUTOTUNE),
      // When a repeated data set starts over, it keeps the threads it had.
      threads_(tunes_ ? stage.threads.load() : threads) {
  if (tunes_ && !stage.key.empty()) {
    const StageTuning learned = runtime.tuning().of(stage.key);
    if (learned.threads > 0) {
      known_ = true;
      threads_ = std::min(learned.threads, runtime.cores());
      no_fewer_until_ns_ = learned.no_fewer_until_ns;
    }
  }
  if (tunes_ && threads_ > 1) known_ = true;
  start_over(now);
  stage_.threads = threads_;
}

void ThreadTuner::start_over(std::int64_t now) {
  since_ns_ = now;
  busy_before_ = busy_ns_;
  items_before_ = stage_.items;
  made_before_ = stage_.made;
  waited_before_ = runtime_.consumer_wait.until(now);
}

void ThreadTuner::remember() {
  if (stage_.key.empty()) return;
  StageTuning learned = runtime_.tuning().of(stage_.key);
  learned.threads = threads_;
  learned.no_fewer_until_ns = no_fewer_until_ns_;
  runtime_.tuning().set(stage_.key, learned);
}

void ThreadTuner::change(int threads, const std::string& why) {
  stepped_down_ = threads < threads_;
  threads_ = threads;
  stage_.threads = threads;
  remember();
  say(why);
}

void ThreadTuner::say(const std::string& why) {
  stage_.decided(fmt::format("{} thread{}: {}", threads_, threads_ == 1 ? "" : "s", why));
}

void ThreadTuner::estimate(std::int64_t now) {
  const std::int64_t made = stage_.made - made_before_;
  const std::int64_t busy = busy_ns_ - busy_before_;
  if (made == 0 || (made < kFirstItems && busy < kFirstBusy)) {
    // The first element opens files and fills caches: ignore it unless it takes long.
    if (made > 0 && !first_passed_) {
      first_passed_ = true;
      start_over(now);
    }
    return;
  }
  known_ = true;
  const std::int64_t cost = busy / made;
  const auto worth =
      static_cast<int>(std::clamp<std::int64_t>(cost / kWorthAThread, 1, runtime_.cores()));
  const std::int64_t waited = runtime_.consumer_wait.until(now) - waited_before_;
  const bool waits =
      static_cast<double>(waited) > kConsumerWaits * static_cast<double>(now - since_ns_);
  if (waits && worth > threads_) {
    change(worth, fmt::format("the consumer waited, and each of the first elements took {:.2f} ms",
                              static_cast<double>(cost) * 1e-6));
  }
  start_over(now);
}

void ThreadTuner::look(std::int64_t now) {
  if (!tunes_) return;
  if (!known_) {
    estimate(now);
    return;
  }
  const std::int64_t elapsed = now - since_ns_;
  const std::int64_t made = stage_.made - made_before_;
  if (elapsed < kLookEvery || made < kLeastItems) return;
  const std::int64_t items = stage_.items - items_before_;
  const std::int64_t busy = busy_ns_ - busy_before_;
  const auto wall = static_cast<double>(elapsed);
  const double waiting =
      std::min(1.0, static_cast<double>(runtime_.consumer_wait.until(now) - waited_before_) / wall);
  const double in_use = static_cast<double>(busy) / wall;  // threads, on average
  const double cost_ms = static_cast<double>(busy) / static_cast<double>(made) * 1e-6;
  const bool idle = threads_ > 1 && in_use * kHeadroom < threads_ - 1;

  if (waiting > kConsumerWaits && in_use > kThreadsBusy * threads_ && threads_ < runtime_.cores() &&
      now > no_more_until_ns_) {
    if (stepped_down_) no_fewer_until_ns_ = now + kSettledFor;
    change(std::min(runtime_.cores(), 2 * threads_),
           fmt::format("the consumer waited {:.0f}% of the time, and {:.1f} threads were busy with "
                       "{:.2f} ms per element",
                       100 * waiting, in_use, cost_ms));
  } else if (waiting > kConsumerOnlyWaits && idle) {
    no_more_until_ns_ = now + kNoMoreFor;
    change(std::max(1, static_cast<int>(std::ceil(in_use * kHeadroom))),
           fmt::format("the consumer waited {:.0f}% of the time, yet only {:.1f} threads were "
                       "busy; the others waited for the input",
                       100 * waiting, in_use));
    stepped_down_ = false;
  } else if (waiting < kConsumerWaits && idle && now > no_fewer_until_ns_) {
    change(threads_ - 1, fmt::format("the consumer takes {:.0f} elements per second, which keep "
                                     "{:.1f} threads busy at {:.2f} ms per element",
                                     static_cast<double>(items) / wall * 1e9, in_use, cost_ms));
  } else if (stage_.decisions().empty()) {
    say(
        fmt::format("the consumer waited {:.0f}% of the time, {:.1f} threads were busy with {:.2f} "
                    "ms per element, and there are {} cores",
                    100 * waiting, in_use, cost_ms, runtime_.cores()));
    remember();
  }
  start_over(now);
}

BufferTuner::BufferTuner(Runtime& runtime, Stage& stage, int elements)
    : runtime_(runtime),
      stage_(stage),
      tunes_(elements == AUTOTUNE),
      elements_(tunes_ ? kFirstBuffer : static_cast<std::size_t>(elements)) {
  if (tunes_ && !stage_.key.empty()) {
    const StageTuning learned = runtime_.tuning().of(stage_.key);
    const std::size_t queue = std::min(static_cast<std::size_t>(learned.queue), kMostBuffer);
    const auto bytes = static_cast<std::size_t>(learned.element_bytes);
    const bool longer = queue > elements_ && bytes > 0;
    const std::size_t more = longer ? (queue - elements_) * bytes : 0;
    if (longer && runtime_.reserve(more)) {
      elements_ = queue;
      element_bytes_ = bytes;
      reserved_ = more;
    }
  }
  stage_.capacity = static_cast<std::int64_t>(elements_);
}

BufferTuner::~BufferTuner() {
  runtime_.release(reserved_);
}

void BufferTuner::put(std::size_t held, std::size_t element_bytes) {
  element_bytes_ = std::max(element_bytes_, element_bytes);
  if (held >= elements_) was_full_ = true;
}

void BufferTuner::found_empty() {
  if (!tunes_ || !was_full_ || elements_ >= kMostBuffer) return;
  was_full_ = false;
  const std::size_t more = elements_ * element_bytes_;
  if (!runtime_.reserve(more)) {
    if (!at_limit_) {
      stage_.decided(fmt::format(
          "{} elements: {} more would take {:.1f} MB, more than is left of the {:.1f} MB budget",
          elements_, elements_, static_cast<double>(more) * 1e-6,
          static_cast<double>(runtime_.memory_budget()) * 1e-6));
    }
    at_limit_ = true;
    return;
  }
  reserved_ += more;
  elements_ *= 2;
  stage_.capacity = static_cast<std::int64_t>(elements_);
  remember();
  stage_.decided(fmt::format(
      "{} elements: the consumer found the queue empty although it had been full", elements_));
}

void BufferTuner::remember() {
  if (stage_.key.empty()) return;
  StageTuning learned = runtime_.tuning().of(stage_.key);
  learned.queue = static_cast<std::int64_t>(elements_);
  learned.element_bytes = static_cast<std::int64_t>(element_bytes_);
  runtime_.tuning().set(stage_.key, learned);
}

}  // namespace lockstep
