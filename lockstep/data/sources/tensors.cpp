// The rows of tensors in memory, in order.
#include <algorithm>
#include <numeric>

#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

class TensorsCursor final : public Cursor {
 public:
  TensorsCursor(std::shared_ptr<const Table> table, std::uint64_t epoch)
      : table_(std::move(table)) {
    std::int64_t end = 0;
    require(!__builtin_mul_overflow(table_->rows(), epoch, &first_number_) &&
                !__builtin_add_overflow(first_number_, table_->rows(), &end),
            "[data] the row numbers of epoch {} overflow", epoch);
  }

  std::optional<Element> next() override {
    if (row_ == table_->rows()) return std::nullopt;
    return table_->element(first_number_ + row_++);
  }

  std::int64_t skip(std::int64_t count) override {
    const std::int64_t passed = std::min(count, table_->rows() - row_);
    row_ += passed;
    return passed;
  }

  const Table* table() const override { return table_.get(); }

  std::int64_t next_rows(std::span<std::int64_t> rows) override {
    const std::int64_t first = first_number_ + row_;
    const std::int64_t count = skip(static_cast<std::int64_t>(rows.size()));
    std::iota(rows.begin(), rows.begin() + count, first);
    return count;
  }

  void save(PositionWriter& state) const override { state.word(static_cast<std::uint64_t>(row_)); }
  void restore(PositionReader& state) override { row_ = state.count(table_->rows()); }

 private:
  std::shared_ptr<const Table> table_;
  std::int64_t first_number_ = 0;  // of the epoch
  std::int64_t row_ = 0;
};

class TensorsNode final : public DatasetNode {
 public:
  TensorsNode(std::vector<Column> columns, std::string name)
      : table_(std::make_shared<Table>(std::move(columns))), name_(std::move(name)) {}

  std::string name() const override { return name_; }
  std::vector<NodePtr> inputs() const override { return {}; }
  std::vector<ElementSpec> element_spec() const override { return table_->spec(); }
  std::int64_t cardinality() const override { return table_->rows(); }
  std::string signature() const override {
    return fmt::format("{}({}: {})", name_, table_->rows(), describe(table_->spec()));
  }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    return std::make_unique<TensorsCursor>(table_, context.epoch);
  }

 private:
  std::shared_ptr<const Table> table_;
  std::string name_;
};

}  // namespace

NodePtr make_tensors(std::vector<Column> columns, std::string name) {
  return std::make_shared<TensorsNode>(std::move(columns), std::move(name));
}

}  // namespace lockstep
