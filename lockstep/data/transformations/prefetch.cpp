// Makes elements ahead of the consumer, on the pipeline's threads; they wait in a queue, each
// together with the input's position behind it. Prefetching changes when elements are made, not
// which.
//
// The producer runs until the queue is full, and goes; taking elements out calls it again once half
// of the queue is free, so that it comes once for several elements. Where the queue is empty and no
// producer has come yet, the consumer makes the element itself.
#include <deque>
#include <exception>

#include "lockstep/data/named_error.h"
#include "lockstep/data/transformations.h"
#include "lockstep/data/tuner.h"

namespace lockstep {
namespace {

class PrefetchCursor final : public Cursor {
 public:
  PrefetchCursor(NodePtr input, const Context& context, int buffer, Stage& stage)
      : stage_(stage),
        tuner_(*context.runtime, stage, buffer),
        span_name_(context.runtime->intern(stage)),
        input_(std::move(input), context) {}

  ~PrefetchCursor() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    gate_->shut();
  }

  void start() override {
    std::lock_guard lock(mutex_);
    begin();
    ask_for_producer();
  }
  bool all_made() const override {
    std::lock_guard lock(mutex_);
    return finished_ && !error_;
  }

  std::optional<Element> next() override {
    std::unique_lock lock(mutex_);
    begin();
    stage_.filled(queue_.size());
    if (queue_.empty() && !finished_) tuner_.found_empty();
    ask_for_producer();
    while (queue_.empty() && !finished_) {
      if (producing_) {
        WaitTimer waiting(stage_);
        changed_.wait(lock);
      } else {
        produce_one(lock);
      }
    }
    if (queue_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return std::nullopt;
    }
    std::optional<Element> element = std::move(queue_.front().element);
    behind_ = std::move(queue_.front().behind);
    queue_.pop_front();
    ask_for_producer();
    return element;
  }

  // Numbers of rows are not worth making ahead.
  bool write_to(RowPlacer& placer) override { return input_.write_to(placer); }
  const Table* table() const override { return input_.table(); }
  std::int64_t next_rows(std::span<std::int64_t> rows) override { return input_.next_rows(rows); }

  // What is in the queue counts, too.
  std::int64_t skip(std::int64_t count) override {
    return started_ ? Cursor::skip(count) : input_.skip(count);
  }

  bool has_state() const override { return false; }
  void save(PositionWriter&) const override {
    fail<InternalError>("the state of a cursor without one was asked for");
  }
  void restore(PositionReader& state) override { input_.restore(state); }
  Position position() override {
    std::lock_guard lock(mutex_);
    return started_ ? behind_ : input_.position();
  }

 private:
  struct Ready {
    Element element;
    Position behind;
  };

  void begin() {
    if (!started_) behind_ = input_.position();
    started_ = true;
  }

  void ask_for_producer() {
    if (asked_ || producing_ || finished_ || queue_.size() > tuner_.elements() / 2) return;
    input_.context().runtime->enqueue(gate_, [this](Track* track) { produce(track); });
    asked_ = true;
  }

  void produce(Track* track) {
    std::unique_lock lock(mutex_);
    asked_ = false;
    while (!producing_ && !finished_ && !stopping_ && queue_.size() < tuner_.elements()) {
      const std::int64_t begin = track != nullptr ? now_ns() : 0;
      produce_one(lock);
      if (track != nullptr) track->add(span_name_, SpanKind::Input, begin, now_ns());
    }
  }

  // Lets go of the lock while the input is at work.
  void produce_one(std::unique_lock<std::mutex>& lock) {
    producing_ = true;
    lock.unlock();
    std::optional<Ready> ready;
    std::exception_ptr error;
    try {
      if (std::optional<Element> element = input_.next()) {
        ready = {.element = std::move(*element), .behind = input_.position()};
      }
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    producing_ = false;
    if (ready) {
      const std::size_t bytes = bytes_of(ready->element);
      try {
        queue_.push_back(std::move(*ready));
      } catch (...) {
        error = caught_in(stage_.name());
      }
      tuner_.put(queue_.size(), bytes);
    }
    if (!ready || error != nullptr) {
      finished_ = true;
      error_ = error;
    }
    changed_.notify_all();
  }

  Stage& stage_;
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  BufferTuner tuner_;
  std::deque<Ready> queue_;
  Position behind_;         // the input's, behind the last element that was taken out
  bool asked_ = false;      // a producer is to come
  bool producing_ = false;  // somebody is in the input
  bool finished_ = false;   // no more will be made
  bool stopping_ = false;
  std::exception_ptr error_;
  bool started_ = false;

  const char* span_name_;
  Input input_;
};

class PrefetchNode final : public DatasetNode {
 public:
  PrefetchNode(NodePtr input, int buffer) : input_(std::move(input)), buffer_(buffer) {}

  std::string name() const override { return "prefetch"; }
  std::vector<NodePtr> inputs() const override { return {input_}; }
  std::vector<ElementSpec> element_spec() const override { return input_->element_spec(); }
  std::int64_t cardinality() const override { return input_->cardinality(); }
  std::string signature() const override { return input_->signature(); }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<PrefetchCursor>(input_, context, buffer_,
                                            context.runtime->stage(*this));
  }

 private:
  NodePtr input_;
  int buffer_;
};

}  // namespace

NodePtr make_prefetch(NodePtr input, int buffer) {
  require(buffer > 0 || buffer == AUTOTUNE,
          "[prefetch] {} elements cannot be made ahead; ask for at least 1, or AUTOTUNE", buffer);
  return std::make_shared<PrefetchNode>(std::move(input), buffer);
}

}  // namespace lockstep
