#include "lockstep/data/dataset.h"

#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

// A cursor together with the signature that its positions carry.
class DatasetIterator final : public Iterator {
 public:
  DatasetIterator(std::unique_ptr<Cursor> cursor, std::string signature)
      : cursor_(std::move(cursor)), signature_(std::move(signature)) {}

  std::optional<Element> next() override { return cursor_->next(); }
  std::optional<std::int64_t> next_into(std::span<Tensor> destination) override {
    return cursor_->next_into(destination);
  }

  std::string save() const override {
    PositionWriter writer;
    writer.text(kFormat);
    writer.text(signature_);
    PositionWriter position;
    cursor_->save(position);
    writer.text(position.bytes());
    return writer.bytes();
  }

  void restore(const std::string& position) override {
    PositionReader reader(position);
    require(reader.text() == kFormat, "[data] these bytes are no saved position of a data set");
    const std::string_view signature = reader.text();
    require(signature == signature_,
            "[data] the position was saved by the data set {} and means nothing to {}", signature,
            signature_);
    PositionReader inner(reader.text());
    reader.expect_end();
    cursor_->restore(inner);
  }

 private:
  static constexpr std::string_view kFormat = "lockstep position 1";

  std::unique_ptr<Cursor> cursor_;
  std::string signature_;
};

}  // namespace

Dataset Dataset::from_tensors(std::vector<Tensor> tensors) {
  std::vector<Column> columns;
  for (Tensor& tensor : tensors) {
    const DType dtype = tensor.dtype();
    columns.push_back({.stored = std::move(tensor), .dtype = dtype});
  }
  return Dataset(make_tensors(std::move(columns)));
}

Dataset Dataset::shuffle(ShuffleOptions options) const {
  return Dataset(make_shuffle(node_, options));
}

Dataset Dataset::batch(std::int64_t size, BatchOptions options) const {
  return Dataset(make_batch(node_, size, options));
}

Dataset Dataset::take(std::int64_t count) const {
  return Dataset(make_take(node_, count));
}

Dataset Dataset::skip(std::int64_t count) const {
  return Dataset(make_skip(node_, count));
}

Dataset Dataset::repeat(std::int64_t count) const {
  return Dataset(make_repeat(node_, count));
}

Dataset Dataset::map(MapFunction function, MapOptions options) const {
  return Dataset(make_map(node_, std::move(function), std::move(options)));
}

Dataset Dataset::prefetch(int buffer) const {
  return Dataset(make_prefetch(node_, buffer));
}

std::vector<ElementSpec> Dataset::element_spec() const {
  return node_->element_spec();
}

std::optional<std::int64_t> Dataset::cardinality() const {
  const std::int64_t count = node_->cardinality();
  return count >= 0 ? std::optional(count) : std::nullopt;
}

std::unique_ptr<Iterator> Dataset::iterator(std::uint64_t epoch) const {
  return std::make_unique<DatasetIterator>(node_->cursor(epoch), node_->signature());
}

std::string describe(const std::vector<ElementSpec>& spec) {
  std::string text;
  for (const ElementSpec& component : spec) {
    text +=
        fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(component.dtype), component.shape);
  }
  return text;
}

}  // namespace lockstep
