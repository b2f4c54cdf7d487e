// Pairs of elements of two data sets, as many as the shorter one has.
#include <algorithm>

#include "lockstep/base/random.h"
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

class ZipCursor final : public Cursor {
 public:
  ZipCursor(NodePtr first, NodePtr second, const Context& context)
      : first_(std::move(first), context), second_(std::move(second), context) {}

  std::optional<Element> next() override {
    if (ended_) return std::nullopt;
    std::optional<Element> left = first_.next();
    std::optional<Element> right = left ? second_.next() : std::nullopt;
    ended_ = !right;
    if (ended_) return std::nullopt;
    require(left->piece == right->piece,
            "[zip] workers cannot divide a pair of batches of {} and {} rows: both need as many",
            left->piece->rows_of_batch, right->piece->rows_of_batch);
    const SampleId sample{.epoch = left->sample.epoch,
                          .number = combine(left->sample.number, right->sample.number),
                          .file = left->sample.file,
                          .record = left->sample.record};
    left->insert(left->end(), right->begin(), right->end());
    left->sample = sample;
    return left;
  }

  std::int64_t skip(std::int64_t count) override {
    if (ended_) return 0;
    const std::int64_t left = first_.skip(count);
    const std::int64_t right = second_.skip(left);
    ended_ = right < count;
    return right;
  }

  void save(PositionWriter& state) const override {
    state.word(ended_ ? 1 : 0);
    first_.save(state);
    second_.save(state);
  }
  void restore(PositionReader& state) override {
    ended_ = state.count(1) == 1;
    first_.restore(state);
    second_.restore(state);
  }
  std::int64_t state_size() const override {
    return std::max(first_.state_size(), second_.state_size());
  }

 private:
  bool ended_ = false;
  Input first_;
  Input second_;
};

class ZipNode final : public DatasetNode {
 public:
  ZipNode(NodePtr first, NodePtr second) : first_(std::move(first)), second_(std::move(second)) {}

  std::string name() const override { return "zip"; }
  std::vector<NodePtr> inputs() const override { return {first_, second_}; }
  std::vector<ElementSpec> element_spec() const override {
    std::vector<ElementSpec> spec = first_->element_spec();
    for (ElementSpec& component : second_->element_spec()) spec.push_back(std::move(component));
    return spec;
  }
  std::int64_t cardinality() const override {
    const std::int64_t left = first_->cardinality();
    const std::int64_t right = second_->cardinality();
    if (left == 0 || right == 0) return 0;
    if (left == kInfinite) return right;
    if (right == kInfinite) return left;
    return left == kUnknown || right == kUnknown ? kUnknown : std::min(left, right);
  }
  std::string signature() const override {
    return fmt::format("zip({}, {})", first_->signature(), second_->signature());
  }
  ShareRules share_rules() const override {
    return {.rows = ShareRules::Rows::OfInputs, .dealt = ShareRules::Dealt::Wrong};
  }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<ZipCursor>(first_, second_, context);
  }

 private:
  NodePtr first_;
  NodePtr second_;
};

}  // namespace

NodePtr make_zip(NodePtr first, NodePtr second) {
  return std::make_shared<ZipNode>(std::move(first), std::move(second));
}

}  // namespace lockstep
