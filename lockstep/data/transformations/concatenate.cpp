// One data set after the other. Samples of both may have the same numbers, so the number of the
// data set is mixed into them.
#include <algorithm>

#include "lockstep/base/random.h"
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

class ConcatenateCursor final : public Cursor {
 public:
  ConcatenateCursor(const NodePtr& first, const NodePtr& second, const Context& context)
      : first_(first, context), second_(second, context) {}

  std::optional<Element> next() override {
    if (!in_second_) {
      if (std::optional<Element> element = first_.next()) return numbered(std::move(*element));
      in_second_ = true;
    }
    std::optional<Element> element = second_.next();
    if (!element) return std::nullopt;
    return numbered(std::move(*element));
  }

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t passed = in_second_ ? 0 : first_.skip(count);
    if (passed == count) return passed;
    in_second_ = true;
    return passed + second_.skip(count - passed);
  }

  void save(PositionWriter& state) const override {
    state.word(in_second_ ? 1 : 0);
    (in_second_ ? second_ : first_).save(state);
  }
  void restore(PositionReader& state) override {
    in_second_ = state.count(1) == 1;
    (in_second_ ? second_ : first_).restore(state);
  }
  std::int64_t state_size() const override { return (in_second_ ? second_ : first_).state_size(); }

 private:
  Element numbered(Element element) const {
    element.sample.number = combine(element.sample.number, in_second_ ? 1 : 0);
    return element;
  }

  bool in_second_ = false;
  Input first_;
  Input second_;
};

class ConcatenateNode final : public DatasetNode {
 public:
  ConcatenateNode(NodePtr first, NodePtr second, std::vector<ElementSpec> spec)
      : first_(std::move(first)), second_(std::move(second)), spec_(std::move(spec)) {}

  std::string name() const override { return "concatenate"; }
  std::vector<NodePtr> inputs() const override { return {first_, second_}; }
  std::vector<ElementSpec> element_spec() const override { return spec_; }
  std::int64_t cardinality() const override {
    const std::int64_t first = first_->cardinality();
    const std::int64_t second = second_->cardinality();
    if (first == kInfinite || second == kInfinite) return kInfinite;
    return first == kUnknown || second == kUnknown ? kUnknown : first + second;
  }
  std::string signature() const override {
    return fmt::format("concatenate({}, {})", first_->signature(), second_->signature());
  }
  ShareRules share_rules() const override { return {.rows = ShareRules::Rows::OfInputs}; }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<ConcatenateCursor>(first_, second_, context);
  }

 private:
  NodePtr first_;
  NodePtr second_;
  std::vector<ElementSpec> spec_;
};

}  // namespace

NodePtr make_concatenate(NodePtr first, NodePtr second) {
  std::vector<ElementSpec> spec = first->element_spec();
  const std::vector<ElementSpec> other = second->element_spec();
  bool compatible = spec.size() == other.size();
  for (std::size_t i = 0; compatible && i < spec.size(); ++i) {
    compatible = spec[i].dtype == other[i].dtype && spec[i].shape.rank() == other[i].shape.rank();
    spec[i].varies = spec[i].varies || other[i].varies || !(spec[i].shape == other[i].shape);
  }
  require(compatible, "[concatenate] elements ({}) cannot follow elements ({})", describe(other),
          describe(first->element_spec()));
  return std::make_shared<ConcatenateNode>(std::move(first), std::move(second), std::move(spec));
}

}  // namespace lockstep
