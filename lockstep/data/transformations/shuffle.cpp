// Shuffling through a buffer, as in tf.data: the buffer is filled with the first elements; each
// element is drawn from a random slot, which the next one of the input refills. When the input has
// ended, the last slot moves into the gap. With a buffer as large as the data set that is a
// Fisher-Yates shuffle: every order is equally likely.
//
// The draws depend only on the seed, the epoch and the input's length, never on contents. The state
// is the contents of the buffer (row numbers for a table, otherwise elements) and how many random
// words were drawn. If the buffer holds a whole table, the state is only the number of rows
// returned: repeating that many draws gives the same buffer and takes no longer than filling it.
#include <algorithm>
#include <array>
#include <limits>

#include "lockstep/base/random.h"
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

// Takes the element of a random slot and refills the slot with refill(); if that has no more,
// removes the slot.
template <class T, class Refill>
T draw(std::vector<T>& slots, RandomSequence& random, Refill refill) {
  T& slot = slots[static_cast<std::size_t>(random.below(slots.size()))];
  T drawn = std::move(slot);
  if (std::optional<T> next = refill()) {
    slot = std::move(*next);
  } else {
    if (&slot != &slots.back()) slot = std::move(slots.back());
    slots.pop_back();
  }
  return drawn;
}

// What both cursors need to start an epoch.
struct Start {
  NodePtr input;
  std::int64_t buffer = 0;
  std::uint64_t seed = 0;
  bool reshuffle = true;
  std::int64_t most = 0;  // elements that an epoch can have

  RandomSequence random(std::uint64_t epoch) const {
    return RandomSequence(seed, combine(hash_name("shuffle"), reshuffle ? epoch : 0));
  }
};

class RowShuffleCursor final : public Cursor {
 public:
  RowShuffleCursor(const Start& start, const Context& context)
      : start_(start), input_(start.input, context), random_(start.random(context.epoch)) {}

  std::optional<Element> next() override {
    std::int64_t row = 0;
    if (next_rows({&row, 1}) == 0) return std::nullopt;
    return table()->element(row);
  }

  std::int64_t skip(std::int64_t count) override {
    std::array<std::int64_t, 256> rows;
    std::int64_t passed = 0;
    while (passed < count) {
      const auto wanted = std::min<std::int64_t>(count - passed, rows.size());
      const std::int64_t got = next_rows(std::span(rows).first(static_cast<std::size_t>(wanted)));
      passed += got;
      if (got < wanted) break;
    }
    return passed;
  }

  const Table* table() const override { return input_.table(); }

  std::int64_t next_rows(std::span<std::int64_t> rows) override {
    if (!filled_) fill();
    std::size_t count = 0;
    while (count < rows.size() && !slots_.empty()) count += draw_rows(rows.subspan(count));
    given_ += static_cast<std::int64_t>(count);
    return static_cast<std::int64_t>(count);
  }

  void save(PositionWriter& state) const override {
    state.word(static_cast<std::uint64_t>(given_));
    if (holds_all()) return;
    state.word(filled_ ? 1 : 0);
    state.word(random_.position());
    state.words(slots_);
    input_.save(state);
  }
  void restore(PositionReader& state) override {
    const std::int64_t given = state.count(start_.most);
    if (holds_all()) {
      require(skip(given) == given,
              "[shuffle] the position is after {} elements, but there are fewer: the data set has "
              "changed",
              given);
      return;
    }
    given_ = given;
    filled_ = state.count(1) == 1;
    random_.seek(state.word());
    slots_ = state.words();
    require(std::ranges::none_of(slots_, [](std::int64_t row) { return row < 0; }),
            "[shuffle] the saved position is damaged: it has a negative row number");
    input_.restore(state);
  }
  std::int64_t state_size() const override {
    return holds_all() ? 1 : std::ssize(slots_) / 8 + input_.state_size();
  }

 private:
  // Whether the buffer is filled with all rows at once.
  bool holds_all() const { return start_.most <= start_.buffer && start_.most != kNoLimit; }

  void fill() {
    constexpr std::int64_t kChunk = 1 << 16;
    while (!ended_ && std::ssize(slots_) < start_.buffer) {
      const std::int64_t wanted = std::min(kChunk, start_.buffer - std::ssize(slots_));
      const std::size_t before = slots_.size();
      slots_.resize(before + static_cast<std::size_t>(wanted));
      const std::int64_t got = input_.next_rows(std::span(slots_).subspan(before));
      slots_.resize(before + static_cast<std::size_t>(got));
      ended_ = got < wanted;
    }
    filled_ = true;
  }

  // Draws several rows, with the same result as calling draw() for each. All slots are chosen
  // before any is read, so that they can be prefetched from memory together. Returns how many.
  std::size_t draw_rows(std::span<std::int64_t> rows) {
    constexpr std::size_t kAtOnce = 64;
    const std::size_t count = std::min({rows.size(), slots_.size(), kAtOnce});
    std::array<std::int64_t, kAtOnce> refills;
    std::size_t refilled = 0;
    if (!ended_) {
      refilled = static_cast<std::size_t>(input_.next_rows(std::span(refills).first(count)));
      ended_ = refilled < count;
    }
    std::array<std::int64_t*, kAtOnce> picked;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t slots = slots_.size() - (i > refilled ? i - refilled : 0);
      picked[i] = &slots_[static_cast<std::size_t>(random_.below(slots))];
      __builtin_prefetch(picked[i]);
    }
    for (std::size_t i = 0; i < count; ++i) {
      rows[i] = *picked[i];
      *picked[i] = i < refilled ? refills[i] : slots_.back();
      if (i >= refilled) slots_.pop_back();
    }
    return count;
  }

  Start start_;
  Input input_;
  RandomSequence random_;
  std::vector<std::int64_t> slots_;
  bool filled_ = false;
  bool ended_ = false;
  std::int64_t given_ = 0;
};

class ElementShuffleCursor final : public Cursor {
 public:
  ElementShuffleCursor(const Start& start, const Context& context)
      : start_(start), input_(start.input, context), random_(start.random(context.epoch)) {}

  std::optional<Element> next() override {
    while (!filled_) {
      std::optional<Element> element;
      if (std::ssize(slots_) < start_.buffer) element = input_.next();
      filled_ = !element;
      if (element) slots_.push_back(std::move(*element));
    }
    if (slots_.empty()) return std::nullopt;
    return draw(slots_, random_, [&] { return input_.next(); });
  }

  void save(PositionWriter& state) const override {
    state.word(filled_ ? 1 : 0);
    state.word(random_.position());
    state.word(slots_.size());
    for (const Element& element : slots_) state.element(element);
    input_.save(state);
  }
  void restore(PositionReader& state) override {
    filled_ = state.count(1) == 1;
    random_.seek(state.word());
    const std::int64_t slots = state.count(start_.buffer);
    const std::vector<ElementSpec> spec = start_.input->element_spec();
    for (std::int64_t i = 0; i < slots; ++i) slots_.push_back(restored_element(state, spec));
    input_.restore(state);
  }
  std::int64_t state_size() const override { return std::ssize(slots_) + input_.state_size(); }

 private:
  Start start_;
  Input input_;
  RandomSequence random_;
  std::vector<Element> slots_;
  bool filled_ = false;
};

class ShuffleNode final : public DatasetNode {
 public:
  explicit ShuffleNode(Start start) : start_(std::move(start)) {}

  std::string name() const override { return "shuffle"; }
  std::vector<NodePtr> inputs() const override { return {start_.input}; }
  std::vector<ElementSpec> element_spec() const override { return start_.input->element_spec(); }
  std::int64_t cardinality() const override { return start_.input->cardinality(); }
  std::string signature() const override {
    return fmt::format("{}.shuffle(buffer {}, seed {}{})", start_.input->signature(),
                       std::min(start_.buffer, start_.most), start_.seed,
                       start_.reshuffle ? "" : ", once");
  }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    if (start_.input->cursor(context)->table() != nullptr) {
      return std::make_unique<RowShuffleCursor>(start_, context);
    }
    return std::make_unique<ElementShuffleCursor>(start_, context);
  }

 private:
  Start start_;
};

}  // namespace

NodePtr make_shuffle(NodePtr input, ShuffleOptions options) {
  require(options.buffer >= 0,
          "[shuffle] .buffer must be 0 or more, not {}; 0 is a buffer for all elements",
          options.buffer);
  const std::int64_t count = input->cardinality();
  require(options.buffer > 0 || count != kInfinite,
          "[shuffle] the data set is infinite, so no buffer can hold all elements; set .buffer");
  return std::make_shared<ShuffleNode>(
      Start{.input = std::move(input),
            .buffer = options.buffer == 0 ? kNoLimit : options.buffer,
            .seed = options.seed,
            .reshuffle = options.reshuffle_each_iteration,
            .most = count < 0 ? kNoLimit : count});
}

}  // namespace lockstep
