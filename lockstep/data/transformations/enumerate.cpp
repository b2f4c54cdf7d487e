// Puts a number in front of each element.
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

class EnumerateCursor final : public Cursor {
 public:
  EnumerateCursor(NodePtr input, const Context& context, std::int64_t start)
      : start_(start), input_(std::move(input), context) {}

  std::optional<Element> next() override {
    std::optional<Element> element = input_.next();
    if (!element) return std::nullopt;
    element->insert(element->begin(), Tensor::scalar(start_ + given_));
    ++given_;
    return element;
  }

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t passed = input_.skip(count);
    given_ += passed;
    return passed;
  }

  void save(PositionWriter& state) const override {
    state.word(static_cast<std::uint64_t>(given_));
    input_.save(state);
  }
  void restore(PositionReader& state) override {
    given_ = state.count(std::numeric_limits<std::int64_t>::max() / 2);
    input_.restore(state);
  }
  std::int64_t state_size() const override { return input_.state_size(); }

 private:
  std::int64_t start_;
  std::int64_t given_ = 0;
  Input input_;
};

class EnumerateNode final : public DatasetNode {
 public:
  EnumerateNode(NodePtr input, std::int64_t start) : input_(std::move(input)), start_(start) {}

  std::string name() const override { return "enumerate"; }
  std::vector<NodePtr> inputs() const override { return {input_}; }
  std::vector<ElementSpec> element_spec() const override {
    std::vector<ElementSpec> spec = input_->element_spec();
    spec.insert(spec.begin(), {.dtype = DType::I64, .shape = {}});
    return spec;
  }
  std::int64_t cardinality() const override { return input_->cardinality(); }
  std::string signature() const override {
    return fmt::format("{}.enumerate({})", input_->signature(), start_);
  }
  ShareRules share_rules() const override { return {.dealt = ShareRules::Dealt::Others}; }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<EnumerateCursor>(input_, context, start_);
  }

 private:
  NodePtr input_;
  std::int64_t start_;
};

}  // namespace

NodePtr make_enumerate(NodePtr input, std::int64_t start) {
  return std::make_shared<EnumerateNode>(std::move(input), start);
}

}  // namespace lockstep
