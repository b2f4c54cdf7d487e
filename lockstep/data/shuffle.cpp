// Shuffling through a buffer, as tf.data does it: the buffer is filled with the first elements;
// each element handed out is drawn from a random slot, which the next one of the input refills.
// When the input has ended, the last slot fills the gap. With a buffer as big as the data set that
// is a Fisher-Yates shuffle: every order is equally likely.
//
// What is drawn depends on the seed, the epoch and the input's length alone, never on contents.
// The number of elements handed out is therefore nearly the whole position. Restoring draws again,
// with numbers in place of elements, and then fetches from the input just the elements that are in
// the buffer; over a table that moves no data at all.
#include <algorithm>
#include <array>
#include <limits>

#include "lockstep/base/random.h"
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

// Takes what lies in a random slot and puts there what refill() returns; without more to come, the
// slots become one fewer.
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

// What both cursors begin an epoch with.
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

// The position, the same for both: how many elements were taken in and handed out in an epoch.
struct Counts {
  std::uint64_t epoch = 0;
  std::int64_t pulled = 0;
  std::int64_t given = 0;
};

void save_counts(PositionWriter& position, const Counts& counts) {
  position.word(counts.epoch);
  position.word(static_cast<std::uint64_t>(counts.pulled));
  position.word(static_cast<std::uint64_t>(counts.given));
}

Counts restore_counts(PositionReader& position, const Start& start) {
  Counts counts;
  counts.epoch = position.word();
  counts.pulled = position.count(start.most);
  counts.given = position.count(counts.pulled);
  return counts;
}

class RowShuffleCursor final : public Cursor {
 public:
  RowShuffleCursor(const Start& start, std::uint64_t epoch, std::unique_ptr<Cursor> input)
      : start_(start), epoch_(epoch), input_(std::move(input)), random_(start.random(epoch)) {}

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

  const Table* table() const override { return input_->table(); }

  std::int64_t next_rows(std::span<std::int64_t> rows) override {
    if (!filled_) fill();
    std::size_t count = 0;
    while (count < rows.size() && !slots_.empty()) {
      rows[count++] = draw(slots_, random_, [&] { return next_row(); });
    }
    given_ += static_cast<std::int64_t>(count);
    return static_cast<std::int64_t>(count);
  }

  void save(PositionWriter& position) const override {
    save_counts(position, {epoch_, pulled_, given_});
  }
  void restore(PositionReader& position) override {
    const auto [epoch, pulled, given] = restore_counts(position, start_);
    RowShuffleCursor there(start_, epoch, start_.input->cursor(epoch));
    if (pulled > 0 && given == 0) there.fill();
    const std::int64_t passed = there.skip(given);
    require(passed == given && there.pulled_ == pulled,
            "[shuffle] the position is after {} of {} elements, but there are {} of {}", given,
            pulled, passed, there.pulled_);
    *this = std::move(there);
  }

 private:
  void fill() {
    constexpr std::int64_t kChunk = 1 << 16;
    while (!ended_ && std::ssize(slots_) < start_.buffer) {
      const std::int64_t wanted = std::min(kChunk, start_.buffer - std::ssize(slots_));
      const std::size_t before = slots_.size();
      slots_.resize(before + static_cast<std::size_t>(wanted));
      const std::int64_t got = input_->next_rows(std::span(slots_).subspan(before));
      slots_.resize(before + static_cast<std::size_t>(got));
      pulled_ += got;
      ended_ = got < wanted;
    }
    filled_ = true;
  }

  std::optional<std::int64_t> next_row() {
    std::int64_t row = 0;
    if (ended_ || input_->next_rows({&row, 1}) == 0) {
      ended_ = true;
      return std::nullopt;
    }
    ++pulled_;
    return row;
  }

  Start start_;
  std::uint64_t epoch_;
  std::unique_ptr<Cursor> input_;
  RandomSequence random_;
  std::vector<std::int64_t> slots_;
  bool filled_ = false;
  bool ended_ = false;
  std::int64_t pulled_ = 0;
  std::int64_t given_ = 0;
};

class ElementShuffleCursor final : public Cursor {
 public:
  ElementShuffleCursor(const Start& start, std::uint64_t epoch, std::unique_ptr<Cursor> input)
      : start_(start), epoch_(epoch), input_(std::move(input)), random_(start.random(epoch)) {}

  std::optional<Element> next() override {
    const auto refill = [&] {
      std::optional<Element> element = input_->next();
      if (element) ++pulled_;
      return element;
    };
    while (!filled_) {
      std::optional<Element> element;
      if (std::ssize(slots_) < start_.buffer) element = refill();
      filled_ = !element;
      if (element) slots_.push_back(std::move(*element));
    }
    if (slots_.empty()) return std::nullopt;
    ++given_;
    return draw(slots_, random_, refill);
  }

  void save(PositionWriter& position) const override {
    save_counts(position, {epoch_, pulled_, given_});
  }
  void restore(PositionReader& position) override {
    const auto [epoch, pulled, given] = restore_counts(position, start_);
    ElementShuffleCursor there(start_, epoch, start_.input->cursor(epoch));
    there.replay(pulled, given);
    *this = std::move(there);
  }

 private:
  // From the beginning of the epoch to where `pulled` elements were taken in and `given` out.
  void replay(std::int64_t pulled, std::int64_t given) {
    if (pulled == 0) return;
    std::int64_t number = 0;
    std::vector<std::int64_t> numbers;
    while (number < std::min(pulled, start_.buffer)) numbers.push_back(number++);
    for (; given_ < given; ++given_) {
      draw(numbers, random_,
           [&] { return number < pulled ? std::optional(number++) : std::nullopt; });
    }
    fetch(numbers, pulled);
    pulled_ = pulled;
    filled_ = true;
  }

  // Reads the input up to its element `pulled`, and keeps those with these numbers.
  void fetch(const std::vector<std::int64_t>& numbers, std::int64_t pulled) {
    std::vector<std::pair<std::int64_t, std::size_t>> in_order;
    for (std::size_t slot = 0; slot < numbers.size(); ++slot) {
      in_order.emplace_back(numbers[slot], slot);
    }
    std::ranges::sort(in_order);
    slots_.resize(numbers.size());
    std::int64_t at = 0;
    for (const auto& [number, slot] : in_order) {
      input_->skip(number - at);
      std::optional<Element> element = input_->next();
      require(element.has_value(),
              "[shuffle] the position is after {} elements, but there are fewer", pulled);
      slots_[slot] = std::move(*element);
      at = number + 1;
    }
    input_->skip(pulled - at);
  }

  Start start_;
  std::uint64_t epoch_;
  std::unique_ptr<Cursor> input_;
  RandomSequence random_;
  std::vector<Element> slots_;
  bool filled_ = false;
  std::int64_t pulled_ = 0;
  std::int64_t given_ = 0;
};

class ShuffleNode final : public DatasetNode {
 public:
  explicit ShuffleNode(Start start) : start_(std::move(start)) {}

  std::vector<ElementSpec> element_spec() const override { return start_.input->element_spec(); }
  std::int64_t cardinality() const override { return start_.input->cardinality(); }
  std::string signature() const override {
    return fmt::format("{}.shuffle(buffer {}, seed {}{})", start_.input->signature(),
                       std::min(start_.buffer, start_.most), start_.seed,
                       start_.reshuffle ? "" : ", once");
  }
  std::unique_ptr<Cursor> cursor(std::uint64_t epoch) const override {
    std::unique_ptr<Cursor> input = start_.input->cursor(epoch);
    if (input->table() != nullptr) {
      return std::make_unique<RowShuffleCursor>(start_, epoch, std::move(input));
    }
    return std::make_unique<ElementShuffleCursor>(start_, epoch, std::move(input));
  }

 private:
  Start start_;
};

}  // namespace

NodePtr make_shuffle(NodePtr input, ShuffleOptions options) {
  require(options.buffer >= 0, "[shuffle] a buffer of {} elements cannot be; 0 holds all of them",
          options.buffer);
  const std::int64_t count = input->cardinality();
  require(options.buffer > 0 || count != kInfinite,
          "[shuffle] a buffer for all elements of a data set without end cannot be; give .buffer a "
          "size");
  constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
  return std::make_shared<ShuffleNode>(
      Start{.input = std::move(input),
            .buffer = options.buffer == 0 ? kNoLimit : options.buffer,
            .seed = options.seed,
            .reshuffle = options.reshuffle_each_iteration,
            .most = count < 0 ? kNoLimit : count});
}

}  // namespace lockstep
