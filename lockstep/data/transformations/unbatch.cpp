// The rows of batches, one by one: views of the batch, which stays in memory as long as one of its
// rows is held. A row's number combines that of the batch with the row's index in it.
//
// The position is that of the input before the current batch, and how many of its rows were
// returned: a restore makes the batch again, so the position does not contain it.
#include <algorithm>

#include "lockstep/base/random.h"
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

Shape row_shape(const Shape& batch) {
  return Shape(std::vector<std::int64_t>(batch.dims().begin() + 1, batch.dims().end()));
}

class UnbatchCursor final : public Cursor {
 public:
  UnbatchCursor(NodePtr input, const Context& context) : input_(std::move(input), context) {}

  std::optional<Element> next() override {
    if (!find_row()) return std::nullopt;
    Element row;
    for (const Tensor& component : batch_) {
      row.push_back(component.rows(row_, 1).reshaped(row_shape(component.shape())));
    }
    row.sample = {.epoch = batch_.sample.epoch,
                  .number = combine(batch_.sample.number, static_cast<std::uint64_t>(row_)),
                  .file = batch_.sample.file,
                  .record = batch_.sample.record};
    ++row_;
    return row;
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t passed = 0;
    while (passed < count && find_row()) {
      const std::int64_t here = std::min(count - passed, rows_ - row_);
      row_ += here;
      passed += here;
    }
    return passed;
  }

  void save(PositionWriter& state) const override {
    const bool inside = row_ < rows_;
    state.word(static_cast<std::uint64_t>(inside ? row_ : 0));
    if (inside) {
      Input::save(before_, state);
    } else {
      input_.save(state);
    }
  }
  void restore(PositionReader& state) override {
    const std::int64_t row = state.count(std::numeric_limits<std::int64_t>::max());
    input_.restore(state);
    if (row == 0) return;
    require(find_row() && row < rows_,
            "[unbatch] the position is at row {} of a batch that now has {} rows", row, rows_);
    row_ = row;
  }
  std::int64_t state_size() const override { return input_.state_size(); }

 private:
  // If this batch has no more rows, goes to the next one that has some; false at the end.
  bool find_row() {
    while (row_ == rows_) {
      before_ = input_.position();
      std::optional<Element> batch = input_.next();
      if (!batch) return false;
      batch_ = std::move(*batch);
      row_ = 0;
      rows_ = 0;
      rows_ = rows_of(batch_);
    }
    return true;
  }

  static std::int64_t rows_of(const Element& batch) {
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const Shape& shape = batch[i].shape();
      require(shape.rank() > 0 && shape[0] == batch[0].shape()[0],
              "[unbatch] {}: component {} is {}, which does not have as many rows as {}",
              describe(batch.sample), i, shape, batch[0].shape());
    }
    return batch[0].shape()[0];
  }

  Element batch_;
  std::int64_t rows_ = 0;
  std::int64_t row_ = 0;  // the next one
  Position before_;       // of the input, before the batch
  Input input_;
};

class UnbatchNode final : public DatasetNode {
 public:
  explicit UnbatchNode(NodePtr input) : input_(std::move(input)) {}

  std::string name() const override { return "unbatch"; }
  std::vector<NodePtr> inputs() const override { return {input_}; }
  std::vector<ElementSpec> element_spec() const override {
    std::vector<ElementSpec> spec = input_->element_spec();
    for (ElementSpec& component : spec) component.shape = row_shape(component.shape);
    return spec;
  }
  std::int64_t cardinality() const override {
    const std::int64_t input = input_->cardinality();
    return input > 0 ? kUnknown : input;  // the last batch may be short
  }
  std::string signature() const override { return input_->signature() + ".unbatch"; }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<UnbatchCursor>(input_, context);
  }

 private:
  NodePtr input_;
};

}  // namespace

NodePtr make_unbatch(NodePtr input) {
  const std::vector<ElementSpec> spec = input->element_spec();
  require(!spec.empty(), "[unbatch] the elements have no components");
  for (std::size_t i = 0; i < spec.size(); ++i) {
    require(spec[i].shape.rank() > 0, "[unbatch] component {} of ({}) is a scalar and has no rows",
            i, describe(spec));
    require(spec[i].varies || spec[0].varies || spec[i].shape[0] == spec[0].shape[0],
            "[unbatch] component 0 has {} rows, component {} has {}", spec[0].shape[0], i,
            spec[i].shape[0]);
  }
  return std::make_shared<UnbatchNode>(std::move(input));
}

}  // namespace lockstep
