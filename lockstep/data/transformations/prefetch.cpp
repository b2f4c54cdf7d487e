// Makes elements ahead of the consumer on the pipeline's threads. They wait in a queue, each with
// the position of the input after it. Prefetching changes when elements are made, not which.
//
// The producer runs until the queue is full and then returns; the consumer requests it again once
// half of the queue is free, so that it runs once for several elements. If the queue is empty and
// no producer has started yet, the consumer makes the element itself.
#include <deque>
#include <exception>

#include "lockstep/data/pipeline/named_error.h"
#include "lockstep/data/pipeline/tuner.h"
#include "lockstep/data/transformations.h"

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
    request_producer();
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
    request_producer();
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
    after_ = std::move(queue_.front().after);
    queue_.pop_front();
    request_producer();
    return element;
  }

  // Row numbers are too cheap to prefetch.
  bool write_to(RowPlacer& placer) override { return input_.write_to(placer); }
  const Table* table() const override { return input_.table(); }
  std::int64_t next_rows(std::span<std::int64_t> rows) override { return input_.next_rows(rows); }

  // Once started, the elements in the queue have to be skipped first.
  std::int64_t skip(std::int64_t count) override {
    return started_ ? Cursor::skip(count) : input_.skip(count);
  }

  bool has_state() const override { return false; }
  void save(PositionWriter&) const override {
    fail<InternalError>("a cursor without state was asked to save it");
  }
  void restore(PositionReader& state) override { input_.restore(state); }
  Position position() override {
    std::lock_guard lock(mutex_);
    return started_ ? after_ : input_.position();
  }

 private:
  struct Ready {
    Element element;
    Position after;
  };

  void begin() {
    if (!started_) after_ = input_.position();
    started_ = true;
  }

  void request_producer() {
    if (requested_ || producing_ || finished_ || queue_.size() > tuner_.elements() / 2) return;
    input_.context().runtime->enqueue(gate_, [this](Track* track) { produce(track); });
    requested_ = true;
  }

  void produce(Track* track) {
    std::unique_lock lock(mutex_);
    requested_ = false;
    while (!producing_ && !finished_ && !stopping_ && queue_.size() < tuner_.elements()) {
      const std::int64_t begin = track != nullptr ? now_ns() : 0;
      produce_one(lock);
      if (track != nullptr) track->add(span_name_, SpanKind::Input, begin, now_ns());
    }
  }

  // Releases the lock while the input makes an element.
  void produce_one(std::unique_lock<std::mutex>& lock) {
    producing_ = true;
    lock.unlock();
    std::optional<Ready> ready;
    std::exception_ptr error;
    try {
      if (std::optional<Element> element = input_.next()) {
        ready = {.element = std::move(*element), .after = input_.position()};
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

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  BufferTuner tuner_;
  std::deque<Ready> queue_;
  Position after_;          // of the input, after the last element returned
  bool requested_ = false;  // a producer was requested and has not started yet
  bool producing_ = false;  // a thread is reading the input
  bool finished_ = false;   // no further element will be made
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
  ShareRules share_rules() const override {
    return {.rows = ShareRules::Rows::OfInputs, .one_to_one = true};
  }
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
          "[prefetch] the buffer must hold at least 1 element or be AUTOTUNE, not {}", buffer);
  return std::make_shared<PrefetchNode>(std::move(input), buffer);
}

}  // namespace lockstep
