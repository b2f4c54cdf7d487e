// A thread of its own runs the input ahead of the consumer, up to `buffer` elements, which wait in
// a queue together with the position that follows each. Prefetching changes when elements are
// made, not which: the position is the input's after the last element that was consumed.
//
// A full queue puts the producer to sleep until half of it is consumed, so that it is woken once
// for several elements.
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

constexpr int kAutotuned = 4;

class PrefetchCursor final : public Cursor {
 public:
  PrefetchCursor(std::unique_ptr<Cursor> input, std::size_t buffer)
      : input_(std::move(input)), buffer_(buffer), position_(position_of_input()) {}

  ~PrefetchCursor() override { stop(); }

  std::optional<Element> next() override {
    if (!producer_.joinable()) start();
    std::unique_lock lock(mutex_);
    not_empty_.wait(lock, [&] { return !queue_.empty() || finished_; });
    if (queue_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return std::nullopt;
    }
    std::optional<Element> element = std::move(queue_.front().element);
    position_ = std::move(queue_.front().position_after);
    queue_.pop_front();
    const bool wake = queue_.size() == buffer_ / 2;
    lock.unlock();
    if (wake) not_full_.notify_one();
    return element;
  }

  void save(PositionWriter& position) const override { position.append(position_); }

  void restore(PositionReader& position) override {
    stop();
    try {
      input_->restore(position);
    } catch (...) {
      PositionReader back(position_);
      input_->restore(back);
      throw;
    }
    position_ = position_of_input();
  }

 private:
  struct Ready {
    Element element;
    std::string position_after;
  };

  std::string position_of_input() const {
    PositionWriter writer;
    input_->save(writer);
    return writer.bytes();
  }

  void start() {
    producer_ = std::jthread([this](std::stop_token stopping) { produce(stopping); });
  }

  // Ends the producer, with the element that it is making, and forgets what was made.
  void stop() {
    if (producer_.joinable()) {
      {
        std::lock_guard lock(mutex_);
        producer_.request_stop();
      }
      not_full_.notify_one();
      producer_.join();
    }
    producer_ = {};
    queue_.clear();
    finished_ = false;
    error_ = nullptr;
  }

  void produce(const std::stop_token& stopping) {
    std::exception_ptr error;
    try {
      while (std::optional<Element> element = input_->next()) {
        Ready ready{std::move(*element), position_of_input()};
        std::unique_lock lock(mutex_);
        queue_.push_back(std::move(ready));
        not_empty_.notify_one();
        if (queue_.size() == buffer_) {
          not_full_.wait(lock,
                         [&] { return queue_.size() <= buffer_ / 2 || stopping.stop_requested(); });
        }
        if (stopping.stop_requested()) return;
      }
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard lock(mutex_);
    error_ = error;
    finished_ = true;
    not_empty_.notify_one();
  }

  std::unique_ptr<Cursor> input_;  // the producer's, while it runs
  std::size_t buffer_;
  std::string position_;  // after the last element consumed

  std::mutex mutex_;  // guards what follows
  std::condition_variable not_empty_;
  std::condition_variable not_full_;
  std::deque<Ready> queue_;
  bool finished_ = false;  // no more will be made
  std::exception_ptr error_;

  std::jthread producer_;  // last, so that it ends before what it uses
};

class PrefetchNode final : public DatasetNode {
 public:
  PrefetchNode(NodePtr input, std::size_t buffer) : input_(std::move(input)), buffer_(buffer) {}

  std::vector<ElementSpec> element_spec() const override { return input_->element_spec(); }
  std::int64_t cardinality() const override { return input_->cardinality(); }
  std::string signature() const override { return input_->signature(); }
  std::unique_ptr<Cursor> cursor(std::uint64_t epoch) const override {
    return std::make_unique<PrefetchCursor>(input_->cursor(epoch), buffer_);
  }

 private:
  NodePtr input_;
  std::size_t buffer_;
};

}  // namespace

NodePtr make_prefetch(NodePtr input, int buffer) {
  require(buffer > 0 || buffer == AUTOTUNE,
          "[prefetch] {} elements cannot be made ahead; ask for at least 1, or AUTOTUNE", buffer);
  return std::make_shared<PrefetchNode>(
      std::move(input), static_cast<std::size_t>(buffer == AUTOTUNE ? kAutotuned : buffer));
}

}  // namespace lockstep
