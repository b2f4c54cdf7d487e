// map on several threads.
//
// A window of elements is in flight. A thread takes the next element of the input (one thread at a
// time, so that the window is in the input's order), opens a slot for it at the end of the window,
// and then calls the function concurrently with other threads. The consumer takes from the front;
// with deterministic = false, it takes whatever is ready. As long as the window has room, each
// thread continues with the next element; when it is full, the thread returns, and the consumer
// requests one again as it takes elements.
//
// If nothing is ready and a thread may still start an element, the consumer makes it itself. So one
// thread is enough, however the stages are stacked.
//
// If deterministic, its position is that of its input after the last element returned.
#include "lockstep/data/transformations/parallel_map.h"

#include <algorithm>
#include <deque>
#include <exception>

#include "lockstep/data/pipeline/named_error.h"
#include "lockstep/data/pipeline/tuner.h"

namespace lockstep {
namespace {

constexpr std::size_t kSlotsPerThread = 4;
constexpr std::size_t kMinSlots = 16;

class ParallelMapCursor final : public Cursor {
 public:
  ParallelMapCursor(NodePtr input, const Context& context,
                    std::shared_ptr<const MappedFunction> function, Stage& stage)
      : function_(std::move(function)),
        stage_(stage),
        tuner_(*context.runtime, stage, stage.busy_ns, function_->options().parallel, now_ns()),
        in_order_(function_->options().deterministic || context.ordered),
        span_name_(context.runtime->intern(stage)),
        input_(std::move(input), context) {
    if (!in_order()) context.runtime->in_order = false;
    if (function_->writes()) {
      own_.emplace(function_->options().spec, 1, context.runtime->memory());
      placer_ = &*own_;
    }
  }

  ~ParallelMapCursor() override {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    gate_->shut();
  }

  std::optional<Element> next() override {
    std::unique_lock lock(mutex_);
    if (!started_) after_ = input_.position();
    started_ = true;
    tuner_.look(now_ns());
    for (;;) {
      request_threads();
      if (std::optional<Element> element = take()) return element;
      if (window_.empty() && ended_ && making_ == 0) {
        if (error_) std::rethrow_exception(error_);
        return std::nullopt;
      }
      if (may_begin()) {
        ++making_;
        lock.unlock();
        make(nullptr);
        lock.lock();
        --making_;
      } else {
        WaitTimer waiting(stage_);
        changed_.wait(lock);
      }
    }
  }

  // Only elements that are not in flight yet can be skipped without making them.
  std::int64_t skip(std::int64_t count) override {
    if (started_ || function_->options().on_error == OnError::Skip) return Cursor::skip(count);
    return input_.skip(count);
  }

  bool write_to(RowPlacer& placer) override {
    if (function_->writes()) placer_ = &placer;
    return function_->writes();
  }

  // With deterministic = false, the elements returned so far need not be the first ones of the
  // input. The state is then the input's position up to which all were returned, and the numbers of
  // those returned beyond it.
  bool has_state() const override { return !function_->options().deterministic; }
  void save(PositionWriter& state) const override {
    std::lock_guard lock(mutex_);
    if (started_) {
      Input::save(after_, state);
    } else {
      input_.save(state);
    }
    std::vector<std::int64_t> given;
    for (const std::shared_ptr<Slot>& slot : window_) {
      if (slot->state == State::Given) given.push_back(slot->count - 1 - after_count_);
    }
    for (const std::int64_t number : given_before_) {
      if (number >= after_count_) given.push_back(number - after_count_);
    }
    std::ranges::sort(given);
    state.words(given);
  }
  void restore(PositionReader& state) override {
    input_.restore(state);
    if (!has_state()) return;
    given_before_ = state.words();
    after_count_ = input_.count();
    for (std::int64_t& number : given_before_) number += after_count_;
  }

  Position position() override {
    std::lock_guard lock(mutex_);
    return started_ ? after_ : input_.position();
  }

 private:
  enum class State { Making, Made, Missing, Failed, Given };

  // An element in flight.
  struct Slot {
    Position after;          // of the input, after this element
    std::int64_t count = 0;  // of the input's elements up to this one
    State state = State::Making;
    Element made;
    std::exception_ptr error;
  };

  bool in_order() const { return in_order_; }

  std::size_t capacity() const {
    return std::max(kMinSlots, kSlotsPerThread * static_cast<std::size_t>(tuner_.threads()));
  }

  bool has_room() const { return window_.size() + static_cast<std::size_t>(pulling_) < capacity(); }

  // Whether one more thread may start an element now.
  bool may_begin() const {
    return !ended_ && !stopping_ && making_ < tuner_.threads() && has_room();
  }

  void request_threads() {
    if (ended_ || stopping_) return;
    while (requested_ + making_ < tuner_.threads() && has_room()) {
      input_.context().runtime->enqueue(gate_, [this](Track* track) { work(track); });
      ++requested_;
    }
  }

  // The work of a pipeline thread: makes one element after the other while the window has room.
  void work(Track* track) {
    std::unique_lock lock(mutex_);
    --requested_;
    while (may_begin()) {
      ++making_;
      lock.unlock();
      {
        StageTimer timer(&stage_);
        make(track);
      }
      lock.lock();
      --making_;
    }
    changed_.notify_all();
  }

  // Takes the next element of the input and maps it. An error before it has a slot in the window,
  // such as no memory for one, ends the pass.
  void make(Track* track) noexcept {
    try {
      make_next(track);
    } catch (...) {
      std::exception_ptr error;
      try {
        rethrow_at("[" + stage_.name() + "] ");
      } catch (...) {
        error = std::current_exception();
      }
      std::lock_guard lock(mutex_);
      ended_ = true;
      error_ = std::move(error);
      changed_.notify_all();
    }
  }

  void make_next(Track* track) {
    Element element;
    Element destination;
    const std::shared_ptr<Slot> slot = pull(element, destination);
    if (slot == nullptr) return;
    const std::int64_t begin = track != nullptr ? now_ns() : 0;
    State state = State::Made;
    try {
      slot->made = (*function_)(element, std::move(destination));
    } catch (const Error& error) {
      state = function_->options().on_error == OnError::Skip ? State::Missing : State::Failed;
      slot->error = std::current_exception();
    } catch (...) {
      state = State::Failed;
      slot->error = std::current_exception();
    }
    if (track != nullptr) track->add(span_name_, SpanKind::Input, begin, now_ns());
    stage_.made.fetch_add(1, std::memory_order_relaxed);
    std::lock_guard lock(mutex_);
    slot->state = state;
    if (state == State::Missing && placer_ != nullptr) placer_->missing();
    if (state == State::Failed) ended_ = true;
    changed_.notify_all();
  }

  // Opens a slot at the end of the window for the input's next element; null at the end.
  std::shared_ptr<Slot> pull(Element& element, Element& destination) {
    std::unique_lock turn(pull_mutex_, std::defer_lock);
    {
      StageTimer nobody(nullptr);
      turn.lock();
    }
    auto slot = std::make_shared<Slot>();
    {
      std::lock_guard lock(mutex_);
      if (ended_ || stopping_ || !has_room()) return nullptr;
      ++pulling_;
    }
    bool there = false;
    try {
      while (std::ranges::count(given_before_, input_.count()) > 0 && input_.skip(1) == 1) {
      }
      std::optional<Element> next = input_.next();
      there = next.has_value();
      if (there) {
        element = std::move(*next);
        slot->after = input_.position();
        slot->count = input_.count();
      }
    } catch (...) {
      slot->error = std::current_exception();
    }
    std::lock_guard lock(mutex_);
    --pulling_;
    if (slot->error != nullptr) {
      slot->state = State::Failed;
      window_.push_back(slot);
    }
    if (!there) {
      ended_ = true;
      changed_.notify_all();
      return nullptr;
    }
    if (placer_ != nullptr) destination = placer_->place();
    window_.push_back(slot);
    return slot;
  }

  // The next element that may be returned; nullopt if none is ready.
  std::optional<Element> take() {
    stage_.filled(static_cast<std::size_t>(std::ranges::count(
        window_, State::Made, [](const std::shared_ptr<Slot>& slot) { return slot->state; })));
    stage_.capacity = static_cast<std::int64_t>(capacity());
    pass_finished();
    for (const std::shared_ptr<Slot>& slot : window_) {
      if (slot->state == State::Failed) std::rethrow_exception(slot->error);
      if (slot->state == State::Made) {
        slot->state = State::Given;
        Element element = std::move(slot->made);
        pass_finished();
        return element;
      }
      if (in_order()) break;
    }
    return std::nullopt;
  }

  // Closes the slots at the front that were returned or skipped.
  void pass_finished() {
    while (!window_.empty()) {
      Slot& front = *window_.front();
      if (front.state == State::Missing) {
        try {
          std::rethrow_exception(front.error);
        } catch (const std::exception& error) {
          input_.context().runtime->skipped(stage_, error.what());
        }
      } else if (front.state != State::Given) {
        return;
      }
      after_ = std::move(front.after);
      after_count_ = front.count;
      window_.pop_front();
    }
  }

  std::shared_ptr<const MappedFunction> function_;
  Stage& stage_;
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  ThreadTuner tuner_;
  std::deque<std::shared_ptr<Slot>> window_;
  Position after_;  // of the input, after the last slot that was closed
  std::int64_t after_count_ = 0;
  // Numbers of elements of the input that had been returned out of order before a restore.
  std::vector<std::int64_t> given_before_;
  int pulling_ = 0;    // threads reading the input, with a slot in the window reserved for them
  int making_ = 0;     // threads in make()
  int requested_ = 0;  // threads that were requested and have not started yet
  bool started_ = false;
  bool ended_ = false;        // no further element may be started
  std::exception_ptr error_;  // that ended the pass, if it is not in a slot
  bool stopping_ = false;

  bool in_order_;
  const char* span_name_;
  std::optional<RowPlacer> own_;
  RowPlacer* placer_ = nullptr;
  std::mutex pull_mutex_;  // held by the thread that reads the input
  Input input_;
};

}  // namespace

std::unique_ptr<Cursor> make_parallel_map_cursor(NodePtr input, const Context& context,
                                                 std::shared_ptr<const MappedFunction> function,
                                                 Stage& stage) {
  return std::make_unique<ParallelMapCursor>(std::move(input), context, std::move(function), stage);
}

}  // namespace lockstep
