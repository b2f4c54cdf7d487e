// map on several threads at once.
//
// A window of elements is under way. Whoever makes one takes the next element of the input (one at
// a time, so that the window is in the input's order), opens a place for it at the end of the
// window, and then calls the function, at the same time as others. The consumer takes from the
// front; with deterministic = false, whatever is ready. As long as there is room in the window,
// each thread goes on with the next element by itself; when there is none, it goes, and the
// consumer asks for it again as it takes elements out.
//
// The consumer does not stand by while there is work that nobody has begun: it makes an element
// itself. So one thread is enough, whatever is stacked upon each other.
//
// In order, it is where its input was behind the last element handed out.
#include "lockstep/data/transformations/parallel_map.h"

#include <algorithm>
#include <deque>
#include <exception>

#include "lockstep/data/named_error.h"
#include "lockstep/data/tuner.h"

namespace lockstep {
namespace {

constexpr std::size_t kPlacesForEachThread = 4;
constexpr std::size_t kLeastPlaces = 16;

class ParallelMapCursor final : public Cursor {
 public:
  ParallelMapCursor(NodePtr input, const Context& context,
                    std::shared_ptr<const MappedFunction> function, Stage& stage)
      : function_(std::move(function)),
        stage_(stage),
        tuner_(*context.runtime, stage, stage.busy_ns, function_->options().parallel, now_ns()),
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
    if (!started_) behind_ = input_.position();
    started_ = true;
    tuner_.look(now_ns());
    for (;;) {
      ask_for_threads();
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

  // Only what is not under way yet can be passed over without making it.
  std::int64_t skip(std::int64_t count) override {
    if (started_ || function_->options().on_error == OnError::Skip) return Cursor::skip(count);
    return input_.skip(count);
  }

  bool write_to(RowPlacer& placer) override {
    if (function_->writes()) placer_ = &placer;
    return function_->writes();
  }

  // Elements that come as they are ready were not the first so many of the input: then it has a
  // state, the input's position behind the last of those before which none is missing, and the
  // numbers of the others.
  bool has_state() const override { return !in_order(); }
  void save(PositionWriter& state) const override {
    std::lock_guard lock(mutex_);
    if (started_) {
      Input::save(behind_, state);
    } else {
      input_.save(state);
    }
    std::vector<std::int64_t> given;
    for (const std::shared_ptr<Place>& place : window_) {
      if (place->state == State::Given) given.push_back(place->count - 1 - behind_count_);
    }
    for (const std::int64_t number : given_before_) {
      if (number >= behind_count_) given.push_back(number - behind_count_);
    }
    std::ranges::sort(given);
    state.words(given);
  }
  void restore(PositionReader& state) override {
    input_.restore(state);
    if (in_order()) return;
    given_before_ = state.words();
    behind_count_ = input_.count();
    for (std::int64_t& number : given_before_) number += behind_count_;
  }

  Position position() override {
    std::lock_guard lock(mutex_);
    return started_ ? behind_ : input_.position();
  }

 private:
  enum class State { Making, Made, Missing, Failed, Given };

  // One element under way.
  struct Place {
    Position behind;         // of the input, behind this element
    std::int64_t count = 0;  // of the input's elements up to this one
    State state = State::Making;
    Element made;
    std::exception_ptr error;
  };

  bool in_order() const { return function_->options().deterministic; }

  std::size_t capacity() const {
    return std::max(kLeastPlaces,
                    kPlacesForEachThread * static_cast<std::size_t>(tuner_.threads()));
  }

  bool has_room() const { return window_.size() + static_cast<std::size_t>(pulling_) < capacity(); }

  // Whether one more thread may make an element now.
  bool may_begin() const {
    return !ended_ && !stopping_ && making_ < tuner_.threads() && has_room();
  }

  void ask_for_threads() {
    if (ended_ || stopping_) return;
    while (asked_ + making_ < tuner_.threads() && has_room()) {
      input_.context().runtime->enqueue(gate_, [this](Track* track) { work(track); });
      ++asked_;
    }
  }

  // What a thread of the pipeline does: one element after the other, for as long as there is room.
  void work(Track* track) {
    std::unique_lock lock(mutex_);
    --asked_;
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

  // Takes the next element of the input and makes one of it. What goes wrong before it has a place
  // in the window, such as that there is no memory for one, ends the pass.
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
    Element place_of_result;
    const std::shared_ptr<Place> place = pull(element, place_of_result);
    if (place == nullptr) return;
    const std::int64_t begin = track != nullptr ? now_ns() : 0;
    State state = State::Made;
    try {
      place->made = (*function_)(element, std::move(place_of_result));
    } catch (const Error& error) {
      state = function_->options().on_error == OnError::Skip ? State::Missing : State::Failed;
      place->error = std::current_exception();
    } catch (...) {
      state = State::Failed;
      place->error = std::current_exception();
    }
    if (track != nullptr) track->add(span_name_, SpanKind::Input, begin, now_ns());
    stage_.made.fetch_add(1, std::memory_order_relaxed);
    std::lock_guard lock(mutex_);
    place->state = state;
    if (state == State::Missing && placer_ != nullptr) placer_->missing();
    if (state == State::Failed) ended_ = true;
    changed_.notify_all();
  }

  // Opens a place at the end of the window for the input's next element; null at its end.
  std::shared_ptr<Place> pull(Element& element, Element& place_of_result) {
    std::unique_lock turn(pull_mutex_, std::defer_lock);
    {
      StageTimer nobody(nullptr);
      turn.lock();
    }
    auto place = std::make_shared<Place>();
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
        place->behind = input_.position();
        place->count = input_.count();
      }
    } catch (...) {
      place->error = std::current_exception();
    }
    std::lock_guard lock(mutex_);
    --pulling_;
    if (place->error != nullptr) {
      place->state = State::Failed;
      window_.push_back(place);
    }
    if (!there) {
      ended_ = true;
      changed_.notify_all();
      return nullptr;
    }
    if (placer_ != nullptr) place_of_result = placer_->place();
    window_.push_back(place);
    return place;
  }

  // An element that is ready and whose turn it is; nothing where there is none.
  std::optional<Element> take() {
    stage_.filled(static_cast<std::size_t>(std::ranges::count(
        window_, State::Made, [](const std::shared_ptr<Place>& place) { return place->state; })));
    stage_.capacity = static_cast<std::int64_t>(capacity());
    pass_finished();
    for (const std::shared_ptr<Place>& place : window_) {
      if (place->state == State::Failed) std::rethrow_exception(place->error);
      if (place->state == State::Made) {
        place->state = State::Given;
        Element element = std::move(place->made);
        pass_finished();
        return element;
      }
      if (in_order()) break;
    }
    return std::nullopt;
  }

  // Closes the places at the front that nothing more comes from.
  void pass_finished() {
    while (!window_.empty()) {
      Place& front = *window_.front();
      if (front.state == State::Missing) {
        try {
          std::rethrow_exception(front.error);
        } catch (const std::exception& error) {
          input_.context().runtime->skipped(stage_, error.what());
        }
      } else if (front.state != State::Given) {
        return;
      }
      behind_ = std::move(front.behind);
      behind_count_ = front.count;
      window_.pop_front();
    }
  }

  std::shared_ptr<const MappedFunction> function_;
  Stage& stage_;
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  ThreadTuner tuner_;
  std::deque<std::shared_ptr<Place>> window_;
  Position behind_;  // the input's, behind the last place that was closed
  std::int64_t behind_count_ = 0;
  // Elements of the input, by their numbers, that had been given out of turn before a restore.
  std::vector<std::int64_t> given_before_;
  int pulling_ = 0;  // threads in the input, with a place in the window promised to them
  int making_ = 0;   // threads in make()
  int asked_ = 0;    // threads that were asked for and have not come yet
  bool started_ = false;
  bool ended_ = false;        // nothing more is to be begun
  std::exception_ptr error_;  // that ended it, where no place has one
  bool stopping_ = false;

  const char* span_name_;
  std::optional<RowPlacer> own_;
  RowPlacer* placer_ = nullptr;
  std::mutex pull_mutex_;  // held by the thread that is in the input
  Input input_;
};

}  // namespace

std::unique_ptr<Cursor> make_parallel_map_cursor(NodePtr input, const Context& context,
                                                 std::shared_ptr<const MappedFunction> function,
                                                 Stage& stage) {
  return std::make_unique<ParallelMapCursor>(std::move(input), context, std::move(function), stage);
}

}  // namespace lockstep
