// A data set several times, or forever. Each round is an epoch of its input, so that a shuffle in
// front of it gives a new order: round r of epoch e is the input's epoch e × rounds + r, or e + r
// if it repeats forever.
#include <algorithm>

#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

class RepeatCursor final : public Cursor {
 public:
  RepeatCursor(NodePtr node, std::int64_t rounds, const Context& context)
      : node_(std::move(node)), rounds_(rounds), context_(context), input_(round_input(0)) {}

  std::optional<Element> next() override {
    do {
      if (std::optional<Element> element = input_->next()) {
        round_is_empty_ = false;
        return element;
      }
    } while (next_round());
    return std::nullopt;
  }

  std::int64_t skip(std::int64_t count) override {
    return over_rounds(count, [&](std::int64_t done) { return input_->skip(count - done); });
  }

  bool write_to(RowPlacer& placer) override {
    placer_ = &placer;
    return input_->write_to(placer);
  }
  const Table* table() const override { return input_->table(); }

  std::int64_t next_rows(std::span<std::int64_t> rows) override {
    return over_rounds(static_cast<std::int64_t>(rows.size()), [&](std::int64_t done) {
      return input_->next_rows(rows.subspan(static_cast<std::size_t>(done)));
    });
  }

  void save(PositionWriter& state) const override {
    state.word(round_);
    state.word(round_is_empty_ ? 1 : 0);
    input_->save(state);
  }
  void restore(PositionReader& state) override {
    round_ = static_cast<std::uint64_t>(
        state.count(rounds_ == kInfinite ? kMostEpochs : std::max<std::int64_t>(rounds_ - 1, 0)));
    round_is_empty_ = state.count(1) == 1;
    input_ = round_input(round_);
    input_->restore(state);
  }
  std::int64_t state_size() const override { return input_->state_size(); }

 private:
  std::unique_ptr<Input> round_input(std::uint64_t round) const {
    const std::uint64_t first = rounds_ == kInfinite
                                    ? context_.epoch
                                    : context_.epoch * static_cast<std::uint64_t>(rounds_);
    auto input = std::make_unique<Input>(node_, context_.in_epoch(first + round));
    if (placer_ != nullptr) input->write_to(*placer_);
    return input;
  }

  // False after the last round. An empty round is the last: all others would be empty, too.
  bool next_round() {
    const bool last = rounds_ != kInfinite && round_ + 1 >= static_cast<std::uint64_t>(rounds_);
    if (last || round_is_empty_) return false;
    ++round_;
    round_is_empty_ = true;
    input_ = round_input(round_);
    return true;
  }

  // Calls get(elements so far) in as many rounds as it takes to get `count`; returns their number.
  template <class Get>
  std::int64_t over_rounds(std::int64_t count, Get get) {
    std::int64_t done = 0;
    while (done < count) {
      const std::int64_t got = get(done);
      done += got;
      if (got > 0) round_is_empty_ = false;
      if (done < count && !next_round()) break;
    }
    return done;
  }

  NodePtr node_;
  std::int64_t rounds_;
  Context context_;
  std::uint64_t round_ = 0;
  bool round_is_empty_ = true;  // so far
  RowPlacer* placer_ = nullptr;
  std::unique_ptr<Input> input_;
};

class RepeatNode final : public DatasetNode {
 public:
  RepeatNode(NodePtr input, std::int64_t rounds) : input_(std::move(input)), rounds_(rounds) {}

  std::string name() const override { return "repeat"; }
  std::vector<NodePtr> inputs() const override { return {input_}; }
  std::vector<ElementSpec> element_spec() const override { return input_->element_spec(); }
  std::int64_t cardinality() const override {
    const std::int64_t input = input_->cardinality();
    if (input <= 0) return input;
    if (rounds_ == kInfinite) return kInfinite;
    std::int64_t all = 0;
    return __builtin_mul_overflow(input, rounds_, &all) ? kInfinite : all;
  }
  std::string signature() const override {
    return fmt::format("{}.repeat({})", input_->signature(), rounds_);
  }
  ShareRules share_rules() const override { return {.rows = ShareRules::Rows::OfInputs}; }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<RepeatCursor>(input_, rounds_, context);
  }

 private:
  NodePtr input_;
  std::int64_t rounds_;
};

}  // namespace

NodePtr make_repeat(NodePtr input, std::int64_t count) {
  require(count >= -1, "[repeat] the count must be 0 or more, or -1 for forever, not {}", count);
  if (count == 0) return make_take(std::move(input), 0);
  return std::make_shared<RepeatNode>(std::move(input), count);
}

}  // namespace lockstep
