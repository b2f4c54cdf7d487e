#include "lockstep/data/tuner.h"

#include <algorithm>

#include "lockstep/data/dataset.h"

namespace lockstep {
namespace {

constexpr std::int64_t kLookEvery = 50'000'000;       // ns
constexpr std::int64_t kLeastItems = 8;               // fewer say nothing yet
constexpr double kConsumerWaits = 0.02;               // of the time: worth doing something about
constexpr double kThreadsWithoutRest = 0.75;          // of their time busy
constexpr double kRoomLeft = 1.3;                     // over what is needed, before one goes
constexpr std::int64_t kSettledFor = 30'000'000'000;  // ns
constexpr std::size_t kFirstBuffer = 2;
constexpr std::size_t kMostBuffer = 256;

}  // namespace

ThreadTuner::ThreadTuner(Runtime& runtime, Stage& stage, const std::atomic<std::int64_t>& busy_ns,
                         int threads, std::int64_t now)
    : runtime_(runtime),
      stage_(stage),
      busy_ns_(busy_ns),
      tunes_(threads == AUTOTUNE),
      // Another round of a repeated data set begins with what was found out before.
      threads_(tunes_ ? stage.threads.load() : threads),
      since_ns_(now),
      busy_before_(busy_ns),
      items_before_(stage.items),
      waited_before_(runtime.consumer_wait_ns) {
  stage_.threads = threads_;
}

void ThreadTuner::change(int threads, const std::string& why) {
  stepped_down_ = threads < threads_;
  threads_ = threads;
  stage_.threads = threads;
  say(why);
}

void ThreadTuner::say(const std::string& why) {
  stage_.decided(fmt::format("{} thread{}: {}", threads_, threads_ == 1 ? "" : "s", why));
}

void ThreadTuner::look(std::int64_t now) {
  if (!tunes_) return;
  const std::int64_t elapsed = now - since_ns_;
  const std::int64_t items = stage_.items - items_before_;
  if (elapsed < kLookEvery || items < kLeastItems) return;
  const std::int64_t busy = busy_ns_ - busy_before_;
  const auto wall = static_cast<double>(elapsed);
  const double waiting = static_cast<double>(runtime_.consumer_wait_ns - waited_before_) / wall;
  const double in_use = static_cast<double>(busy) / wall;  // threads, on average
  const double cost_ms = static_cast<double>(busy) / static_cast<double>(items) * 1e-6;

  if (waiting > kConsumerWaits && in_use > kThreadsWithoutRest * threads_ &&
      threads_ < runtime_.cores()) {
    if (stepped_down_) no_fewer_until_ns_ = now + kSettledFor;
    change(std::min(runtime_.cores(), threads_ + std::max(1, threads_ / 2)),
           fmt::format("the consumer waited {:.0f}% of the time, and {:.1f} threads were busy with "
                       "{:.2f} ms an element",
                       100 * waiting, in_use, cost_ms));
  } else if (waiting < kConsumerWaits && threads_ > 1 && in_use * kRoomLeft < threads_ - 1 &&
             now > no_fewer_until_ns_) {
    change(threads_ - 1, fmt::format("the consumer takes {:.0f} elements a second, which {:.1f} "
                                     "threads make in {:.2f} ms each",
                                     static_cast<double>(items) / wall * 1e9, in_use, cost_ms));
  } else if (stage_.decisions().empty()) {
    say(
        fmt::format("the consumer waited {:.0f}% of the time, {:.1f} threads were busy with {:.2f} "
                    "ms an element, and there are {} cores",
                    100 * waiting, in_use, cost_ms, runtime_.cores()));
  }
  since_ns_ = now;
  busy_before_ = busy_ns_;
  items_before_ = stage_.items;
  waited_before_ = runtime_.consumer_wait_ns;
}

BufferTuner::BufferTuner(Runtime& runtime, Stage& stage, int elements)
    : runtime_(runtime),
      stage_(stage),
      tunes_(elements == AUTOTUNE),
      elements_(tunes_ ? kFirstBuffer : static_cast<std::size_t>(elements)) {
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
          "{} elements: {} more would take {:.1f} MB, which the budget of {:.1f} MB has not left",
          elements_, elements_, static_cast<double>(more) * 1e-6,
          static_cast<double>(runtime_.memory_budget()) * 1e-6));
    }
    at_limit_ = true;
    return;
  }
  reserved_ += more;
  elements_ *= 2;
  stage_.capacity = static_cast<std::int64_t>(elements_);
  stage_.decided(fmt::format(
      "{} elements: the consumer found the queue empty although it had been full", elements_));
}

}  // namespace lockstep
