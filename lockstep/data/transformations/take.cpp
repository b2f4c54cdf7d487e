// The first elements of a data set.
#include <algorithm>

#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

class TakeCursor final : public Cursor {
 public:
  TakeCursor(NodePtr input, const Context& context, std::int64_t count)
      : input_(std::move(input), context), count_(count) {}

  std::optional<Element> next() override {
    if (taken_ == count_) return std::nullopt;
    std::optional<Element> element = input_.next();
    if (element) ++taken_;
    return element;
  }

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t passed = input_.skip(std::min(count, count_ - taken_));
    taken_ += passed;
    return passed;
  }

  bool write_to(RowPlacer& placer) override { return input_.write_to(placer); }
  const Table* table() const override { return input_.table(); }

  std::int64_t next_rows(std::span<std::int64_t> rows) override {
    const auto left = static_cast<std::size_t>(count_ - taken_);
    const std::int64_t got = input_.next_rows(rows.first(std::min(rows.size(), left)));
    taken_ += got;
    return got;
  }

  void save(PositionWriter& state) const override {
    state.word(static_cast<std::uint64_t>(taken_));
    input_.save(state);
  }
  void restore(PositionReader& state) override {
    const std::int64_t taken = state.count(count_);
    input_.restore(state);
    taken_ = taken;
  }
  std::int64_t state_size() const override { return input_.state_size(); }

 private:
  Input input_;
  std::int64_t count_;
  std::int64_t taken_ = 0;
};

class TakeNode final : public DatasetNode {
 public:
  TakeNode(NodePtr input, std::int64_t count) : input_(std::move(input)), count_(count) {}

  std::string name() const override { return "take"; }
  std::vector<NodePtr> inputs() const override { return {input_}; }
  std::vector<ElementSpec> element_spec() const override { return input_->element_spec(); }
  std::int64_t cardinality() const override {
    const std::int64_t input = input_->cardinality();
    if (input == kInfinite) return count_;
    return input == kUnknown ? kUnknown : std::min(input, count_);
  }
  std::string signature() const override {
    return fmt::format("{}.take({})", input_->signature(), count_);
  }
  ShareRules share_rules() const override {
    return {.rows = ShareRules::Rows::OfInputs, .dealt = ShareRules::Dealt::Others};
  }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<TakeCursor>(input_, context, count_);
  }

 private:
  NodePtr input_;
  std::int64_t count_;
};

}  // namespace

NodePtr make_take(NodePtr input, std::int64_t count) {
  require(count >= 0, "[take] the count must be 0 or more, or -1 for all, not {}", count);
  return std::make_shared<TakeNode>(std::move(input), count);
}

}  // namespace lockstep
