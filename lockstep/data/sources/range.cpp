// The numbers 0, 1, 2, ….
#include <algorithm>

#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

class RangeCursor final : public Cursor {
 public:
  RangeCursor(std::int64_t count, std::uint64_t epoch) : count_(count), epoch_(epoch) {}

  std::optional<Element> next() override {
    if (at_ == count_) return std::nullopt;
    Element element{Tensor::scalar(at_)};
    element.sample = {.epoch = epoch_, .number = static_cast<std::uint64_t>(at_)};
    ++at_;
    return element;
  }
  std::int64_t skip(std::int64_t count) override {
    const std::int64_t passed = std::min(count, count_ - at_);
    at_ += passed;
    return passed;
  }
  void save(PositionWriter& state) const override { state.word(static_cast<std::uint64_t>(at_)); }
  void restore(PositionReader& state) override { at_ = state.count(count_); }

 private:
  std::int64_t count_;
  std::uint64_t epoch_;
  std::int64_t at_ = 0;
};

class RangeNode final : public DatasetNode {
 public:
  explicit RangeNode(std::int64_t count) : count_(count) {}

  std::string name() const override { return "range"; }
  std::vector<NodePtr> inputs() const override { return {}; }
  std::vector<ElementSpec> element_spec() const override {
    return {{.dtype = DType::I64, .shape = {}}};
  }
  std::int64_t cardinality() const override { return count_; }
  std::string signature() const override { return fmt::format("range({})", count_); }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<RangeCursor>(count_, context.epoch);
  }

 private:
  std::int64_t count_;
};

}  // namespace

NodePtr make_range(std::int64_t count) {
  require(count >= 0, "[range] the count must be 0 or more, not {}", count);
  return std::make_shared<RangeNode>(count);
}

}  // namespace lockstep
