// All but the first elements of a data set.
#include <algorithm>

#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

class SkipCursor final : public Cursor {
 public:
  SkipCursor(NodePtr input, const Context& context, std::int64_t count)
      : input_(std::move(input), context), count_(count) {}

  std::optional<Element> next() override {
    pass_beginning();
    return input_.next();
  }
  std::int64_t skip(std::int64_t count) override {
    pass_beginning();
    return input_.skip(count);
  }
  bool write_to(RowPlacer& placer) override { return input_.write_to(placer); }
  const Table* table() const override { return input_.table(); }
  std::int64_t next_rows(std::span<std::int64_t> rows) override {
    pass_beginning();
    return input_.next_rows(rows);
  }

  void save(PositionWriter& state) const override {
    state.word(passed_ ? 1 : 0);
    input_.save(state);
  }
  void restore(PositionReader& state) override {
    const bool passed = state.count(1) == 1;
    input_.restore(state);
    passed_ = passed;
  }
  std::int64_t state_size() const override { return input_.state_size(); }

 private:
  void pass_beginning() {
    if (!passed_) input_.skip(count_);
    passed_ = true;
  }

  Input input_;
  std::int64_t count_;
  bool passed_ = false;
};

class SkipNode final : public DatasetNode {
 public:
  SkipNode(NodePtr input, std::int64_t count) : input_(std::move(input)), count_(count) {}

  std::string name() const override { return "skip"; }
  std::vector<NodePtr> inputs() const override { return {input_}; }
  std::vector<ElementSpec> element_spec() const override { return input_->element_spec(); }
  std::int64_t cardinality() const override {
    const std::int64_t input = input_->cardinality();
    return input < 0 ? input : std::max<std::int64_t>(0, input - count_);
  }
  std::string signature() const override {
    return fmt::format("{}.skip({})", input_->signature(), count_);
  }
  ShareRules share_rules() const override {
    return {.rows = ShareRules::Rows::OfInputs, .dealt = ShareRules::Dealt::Others};
  }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<SkipCursor>(input_, context, count_);
  }

 private:
  NodePtr input_;
  std::int64_t count_;
};

}  // namespace

NodePtr make_skip(NodePtr input, std::int64_t count) {
  require(count >= 0, "[skip] the count must be 0 or more, or -1 for all, not {}", count);
  return std::make_shared<SkipNode>(std::move(input), count);
}

}  // namespace lockstep
