// Interleaving as in tf.data. `cycle` slots take turns. When it is the turn of an empty slot, it
// opens the data set of the next outer element. A slot returns `block` elements, or fewer if its
// data set ends; it is then empty. After that the next slot has its turn.
//
// In parallel, threads fill the output queues of the open data sets, starting with those whose turn
// comes first; when data sets end, the next ones are opened ahead. That changes when elements are
// made, but neither which nor in which order. If nothing is ready and nobody is making it, the
// consumer makes it itself, so one thread is enough, however the stages are stacked.
//
// The position consists of whose turn it is; the outer element of each slot and the position after
// its last element returned; and the position of the outer input before the data sets that were
// opened ahead. It does not depend on the number of threads. With deterministic = false it is exact
// as well: each data set continues where it was.
#include "lockstep/data/transformations/interleave_cursor.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/random.h"
#include "lockstep/data/pipeline/named_error.h"
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

constexpr std::size_t kLeastAhead = 2;
constexpr std::size_t kMostAhead = 16;

}  // namespace

InterleaveCursor::Inner::~Inner() {
  for (const Ready& each : ready) runtime->release(each.reserved);
  input.reset();
  if (node != nullptr) runtime->forget(*node);
}

InterleaveCursor::InterleaveCursor(NodePtr input, const Context& context,
                                   std::shared_ptr<const Interleaving> interleaving, Stage& stage)
    : interleaving_(std::move(interleaving)),
      context_(context),
      stage_(stage),
      span_name_(context.runtime->intern(stage)),
      capacity_(std::clamp(static_cast<std::size_t>(2 * interleaving_->options.block), kLeastAhead,
                           kMostAhead)),
      in_order_(interleaving_->options.deterministic || context.ordered || !ahead()),
      outer_(std::move(input), context),
      slots_(static_cast<std::size_t>(interleaving_->options.cycle)),
      tuner_(*context.runtime, stage, stage.reading_ns, interleaving_->options.parallel, now_ns()) {
  if (!in_order_) context.runtime->in_order = false;
  if (ahead()) stage_.capacity = static_cast<std::int64_t>(capacity_);
}

InterleaveCursor::~InterleaveCursor() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  gate_->shut();
}

std::optional<Element> InterleaveCursor::next() {
  if (error_) std::rethrow_exception(error_);
  try {
    if (ahead()) {
      started_ = true;
      tune();
    }
    return in_order_ ? next_in_turn() : next_ready();
  } catch (...) {
    error_ = std::current_exception();
    throw;
  }
}

std::optional<Element> InterleaveCursor::next_in_turn() {
  for (;;) {
    look_ahead();
    request_threads();
    if (slots_[slot_] != nullptr) {
      if (std::optional<Element> element = take(*slots_[slot_])) {
        if (++in_turn_ == interleaving_->options.block) advance();
        return element;
      }
      close(slot_);
      advance();
    } else if (std::unique_ptr<Inner> inner = next_inner()) {
      std::lock_guard lock(mutex_);
      slots_[slot_] = std::move(inner);
    } else if (std::ranges::all_of(slots_, [](const auto& slot) { return slot == nullptr; })) {
      return std::nullopt;
    } else {
      advance();
    }
  }
}

std::optional<Element> InterleaveCursor::next_ready() {
  for (;;) {
    for (std::unique_ptr<Inner>& slot : slots_) {
      if (slot != nullptr) continue;
      std::unique_ptr<Inner> inner = next_inner();
      if (inner == nullptr) break;
      std::lock_guard lock(mutex_);
      slot = std::move(inner);
    }
    look_ahead();
    request_threads();
    std::unique_lock lock(mutex_);
    std::optional<std::size_t> best;  // ready, or else one that no thread is reading
    bool any = false;
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      const std::size_t at = (slot_ + i) % slots_.size();
      const Inner* inner = slots_[at].get();
      if (inner == nullptr) continue;
      any = true;
      const bool settled = !inner->ready.empty() || inner->ended || inner->error != nullptr;
      if (!inner->busy && !best) best = at;
      if (settled) {
        best = at;
        break;
      }
    }
    if (!any) return std::nullopt;
    if (!best) {
      WaitTimer waiting(stage_);
      changed_.wait(lock);
      continue;
    }
    if (slot_ != *best) in_turn_ = 0;
    slot_ = *best;
    lock.unlock();
    if (std::optional<Element> element = take(*slots_[slot_])) {
      if (++in_turn_ == interleaving_->options.block) advance();
      return element;
    }
    close(slot_);
    advance();
  }
}

void InterleaveCursor::advance() {
  std::lock_guard lock(mutex_);
  slot_ = (slot_ + 1) % slots_.size();
  in_turn_ = 0;
}

void InterleaveCursor::close(std::size_t slot) {
  std::unique_ptr<Inner> closed;
  std::lock_guard lock(mutex_);
  closed = std::move(slots_[slot]);
  look_again_ = true;
}

// The data set of the next outer element; null after the last.
std::unique_ptr<InterleaveCursor::Inner> InterleaveCursor::pull() {
  Position before = ahead() ? outer_.position() : Position();
  std::optional<Element> outer = outer_.next();
  if (!outer) return nullptr;
  return make(std::move(*outer), std::move(before));
}

// Errors are stored in it until its turn comes.
std::unique_ptr<InterleaveCursor::Inner> InterleaveCursor::make(Element outer,
                                                                Position before) const {
  auto inner = std::make_unique<Inner>();
  inner->runtime = context_.runtime.get();
  inner->outer = std::move(outer);
  inner->before = std::move(before);
  try {
    build(*inner);
  } catch (...) {
    inner->error = std::current_exception();
  }
  return inner;
}

void InterleaveCursor::build(Inner& inner) const {
  try {
    inner.node = interleaving_->function(inner.outer).node();
    const std::vector<ElementSpec> spec = inner.node->element_spec();
    const std::vector<ElementSpec>& expected = interleaving_->spec;
    bool compatible = spec.size() == expected.size();
    for (std::size_t i = 0; compatible && i < spec.size(); ++i) {
      compatible = spec[i].dtype == expected[i].dtype &&
                   spec[i].shape.rank() == expected[i].shape.rank() &&
                   (expected[i].varies || (!spec[i].varies && spec[i].shape == expected[i].shape));
    }
    require(compatible,
            "the data set made from it has elements ({}), that of the first element ({})",
            describe(spec), describe(expected));
  } catch (...) {
    rethrow_at("interleave", inner.outer.sample);
  }
  context_.runtime->measure_as(*inner.node, *interleaving_->model);
  // A later pass over the outer elements is a later pass over the data sets made from them. Files
  // were dealt out with the outer elements.
  Context inside = context_.in_epoch(inner.outer.sample.epoch);
  inside.files = {};
  inner.input = std::make_unique<Input>(inner.node, inside);
}

std::unique_ptr<InterleaveCursor::Inner> InterleaveCursor::next_inner() {
  {
    std::lock_guard lock(mutex_);
    if (!opened_ahead_.empty()) {
      std::unique_ptr<Inner> inner = std::move(opened_ahead_.front());
      opened_ahead_.pop_front();
      return inner;
    }
  }
  if (outer_error_) std::rethrow_exception(outer_error_);
  return pull();
}

// Opens data sets until as many can be read as there are slots or threads, whichever are more.
void InterleaveCursor::look_ahead() {
  if (!ahead()) return;
  std::unique_lock lock(mutex_);
  if (!std::exchange(look_again_, false) || outer_error_) return;
  const std::size_t wanted = std::max(slots_.size(), static_cast<std::size_t>(tuner_.threads()));
  const auto gives_more = [](const std::unique_ptr<Inner>& inner) {
    return inner != nullptr && !inner->ended;
  };
  auto there = static_cast<std::size_t>(std::ranges::count_if(slots_, gives_more) +
                                        std::ranges::count_if(opened_ahead_, gives_more));
  lock.unlock();
  try {
    for (; there < wanted; ++there) {
      std::unique_ptr<Inner> inner = pull();
      if (inner == nullptr) return;
      std::lock_guard again(mutex_);
      opened_ahead_.push_back(std::move(inner));
    }
  } catch (...) {
    outer_error_ = std::current_exception();
  }
}

std::optional<Element> InterleaveCursor::take(Inner& inner) {
  if (!ahead()) {
    if (inner.error) std::rethrow_exception(inner.error);
    std::optional<Element> element = inner.input->next();
    if (!element) return std::nullopt;
    return hand_out(inner, {.element = std::move(*element), .after = {}, .reserved = 0});
  }
  std::unique_lock lock(mutex_);
  stage_.filled(inner.ready.size());
  for (;;) {
    if (!inner.ready.empty()) {
      Ready ready = std::move(inner.ready.front());
      inner.ready.pop_front();
      if (ready.reserved > 0) short_of_memory_ = false;
      context_.runtime->release(ready.reserved);
      return hand_out(inner, std::move(ready));
    }
    if (inner.error) std::rethrow_exception(inner.error);
    if (inner.ended) return std::nullopt;
    if (inner.busy) {
      WaitTimer waiting(stage_);
      changed_.wait(lock);
    } else if (std::optional<Ready> ready = produce(inner, lock)) {
      return hand_out(inner, std::move(*ready));
    }
  }
}

Element InterleaveCursor::hand_out(Inner& inner, Ready ready) {
  if (ahead()) inner.after = std::move(ready.after);
  ready.element.sample.number = combine(inner.outer.sample.number, ready.element.sample.number);
  return std::move(ready.element);
}

std::optional<InterleaveCursor::Ready> InterleaveCursor::produce(
    Inner& inner, std::unique_lock<std::mutex>& lock) {
  inner.busy = true;
  lock.unlock();
  const std::int64_t begin = now_ns();
  std::optional<Ready> ready;
  std::exception_ptr error;
  try {
    if (std::optional<Element> element = inner.input->next()) {
      ready = {.element = std::move(*element), .after = inner.input->position(), .reserved = 0};
    }
  } catch (...) {
    error = std::current_exception();
  }
  stage_.reading_ns.fetch_add(now_ns() - begin, std::memory_order_relaxed);
  if (ready) stage_.made.fetch_add(1, std::memory_order_relaxed);
  lock.lock();
  inner.busy = false;
  inner.error = error;
  inner.ended = !ready && error == nullptr;
  if (inner.ended) look_again_ = true;
  changed_.notify_all();
  return ready;
}

bool InterleaveCursor::wants_more(const Inner& inner) const {
  const std::size_t least = short_of_memory_ ? 0 : capacity_ / 2;
  return !inner.busy && !inner.ended && inner.error == nullptr && inner.ready.size() <= least;
}

int InterleaveCursor::wanting() const {
  int count = 0;
  for (const std::unique_ptr<Inner>& slot : slots_) {
    if (slot != nullptr && wants_more(*slot)) ++count;
  }
  for (const std::unique_ptr<Inner>& inner : opened_ahead_) {
    if (wants_more(*inner)) ++count;
  }
  return count;
}

void InterleaveCursor::tune() {
  std::lock_guard lock(mutex_);
  const int before = tuner_.threads();
  tuner_.look(now_ns());
  if (tuner_.threads() > before) look_again_ = true;
}

void InterleaveCursor::request_threads() {
  if (!ahead()) return;
  std::lock_guard lock(mutex_);
  for (int wanted = std::min(tuner_.threads(), wanting()); workers_ < wanted; ++workers_) {
    context_.runtime->enqueue(gate_, [this](Track* track) { work(track); });
  }
}

// The data set to fill next: the first in turn with an empty queue, otherwise the first that wants
// more.
InterleaveCursor::Inner* InterleaveCursor::emptiest_in_turn() {
  for (const bool empty : {true, false}) {
    const auto suits = [&](const Inner& inner) {
      return wants_more(inner) && (!empty || inner.ready.empty());
    };
    for (std::size_t i = 0; i < slots_.size(); ++i) {
      Inner* inner = slots_[(slot_ + i) % slots_.size()].get();
      if (inner != nullptr && suits(*inner)) return inner;
    }
    for (const std::unique_ptr<Inner>& inner : opened_ahead_) {
      if (suits(*inner)) return inner.get();
    }
  }
  return nullptr;
}

// The work of a pipeline thread: fills one queue after the other while one wants more and there are
// no more threads than the tuner allows.
void InterleaveCursor::work(Track* track) {
  std::unique_lock lock(mutex_);
  while (!stopping_ && workers_ <= tuner_.threads()) {
    Inner* const inner = emptiest_in_turn();
    if (inner == nullptr) break;
    const std::int64_t begin = track != nullptr ? now_ns() : 0;
    StageTimer timer(&stage_);
    bool paid = true;
    while (paid && !stopping_ && !inner->busy && inner->error == nullptr &&
           inner->ready.size() < capacity_) {
      std::optional<Ready> ready = produce(*inner, lock);
      if (!ready) break;
      const std::size_t bytes = bytes_of(ready->element);
      paid = context_.runtime->reserve(bytes);
      if (paid) ready->reserved = bytes;
      short_of_memory_ = !paid;
      try {
        inner->ready.push_back(std::move(*ready));
      } catch (...) {
        context_.runtime->release(paid ? bytes : 0);
        inner->error = caught_in(stage_.name());
      }
      changed_.notify_all();
    }
    if (track != nullptr) track->add(span_name_, SpanKind::Input, begin, now_ns());
    if (!paid) break;
  }
  --workers_;
}

std::int64_t InterleaveCursor::skip(std::int64_t count) {
  if (started_ || error_) return Cursor::skip(count);
  std::int64_t passed = 0;
  while (passed < count) {
    Inner* inner = slots_[slot_].get();
    if (inner == nullptr) {
      slots_[slot_] = next_inner();
      if (slots_[slot_] != nullptr) continue;
      if (std::ranges::all_of(slots_, [](const auto& slot) { return slot == nullptr; })) break;
      advance();
      continue;
    }
    if (inner->error) return passed + Cursor::skip(count - passed);
    const std::int64_t wanted = std::min(count - passed, interleaving_->options.block - in_turn_);
    const std::int64_t got = inner->input->skip(wanted);
    if (ahead()) inner->after = inner->input->position();
    passed += got;
    in_turn_ += got;
    if (got < wanted) close(slot_);
    if (got < wanted || in_turn_ == interleaving_->options.block) advance();
  }
  return passed;
}

void InterleaveCursor::save(PositionWriter& state) const {
  std::lock_guard lock(mutex_);
  state.word(slot_);
  state.word(static_cast<std::uint64_t>(in_turn_));
  for (const std::unique_ptr<Inner>& inner : slots_) {
    state.word(inner != nullptr ? 1 : 0);
    if (inner == nullptr) continue;
    state.element(inner->outer);
    const bool begun = ahead() ? inner->after.has_value() : inner->input != nullptr;
    state.word(begun ? 1 : 0);
    if (!begun) continue;
    if (ahead()) {
      Input::save(*inner->after, state);
    } else {
      inner->input->save(state);
    }
  }
  if (opened_ahead_.empty()) {
    outer_.save(state);
  } else {
    Input::save(opened_ahead_.front()->before, state);
  }
}

void InterleaveCursor::restore(PositionReader& state) {
  slot_ = static_cast<std::size_t>(state.count(std::ssize(slots_) - 1));
  in_turn_ = state.count(interleaving_->options.block - 1);
  for (std::unique_ptr<Inner>& slot : slots_) {
    if (state.count(1) == 0) continue;
    slot = make(restored_element(state, outer_.node()->element_spec()), {});
    if (state.count(1) == 0) continue;
    if (slot->error) std::rethrow_exception(slot->error);
    slot->input->restore(state);
    if (ahead()) slot->after = slot->input->position();
  }
  outer_.restore(state);
}

std::int64_t InterleaveCursor::state_size() const {
  return outer_.state_size() + std::ssize(slots_);
}

}  // namespace lockstep
