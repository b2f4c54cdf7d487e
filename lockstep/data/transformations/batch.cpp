// Stacks elements along a new outermost axis. Rows of a table are gathered directly into the batch;
// an input that makes new elements (map) writes them directly into its rows; other elements are
// copied into the batch one by one. The buffers of batches are reused once nobody holds them.
//
// It has no state: between batches, its position is that of its input. A position can therefore be
// restored with another batch size.
#include <algorithm>

#include "lockstep/data/pipeline/buffer_pool.h"
#include "lockstep/data/pipeline/row_placer.h"
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

std::size_t bytes_of(const ElementSpec& spec) {
  return static_cast<std::size_t>(spec.shape.elements()) * size_of(spec.dtype);
}

class BatchCursor final : public Cursor {
 public:
  BatchCursor(NodePtr input, const Context& context, std::vector<ElementSpec> spec,
              std::int64_t size, BatchOptions options)
      : spec_(std::move(spec)),
        pools_(spec_.size(), BufferPool(context.runtime->memory())),
        size_(size),
        options_(options),
        placer_(input->element_spec(), size, context.runtime->memory()),
        input_(input, context) {
    input_.write_to(placer_);
  }

  std::optional<Element> next() override {
    return input_.table() != nullptr ? gathered() : stacked();
  }

  std::int64_t skip(std::int64_t count) override {
    std::int64_t passed = 0;
    while (passed < count) {
      const std::int64_t rows = input_.skip(size_);
      if (rows == 0 || (rows < size_ && options_.drop_remainder)) break;
      ++passed;
    }
    return passed;
  }

  std::optional<std::int64_t> next_into(std::span<Tensor> destination) override {
    if (input_.table() == nullptr) return Cursor::next_into(destination);
    require(destination.size() == spec_.size(),
            "[next_into] a batch of {} components cannot be written to {} tensors", spec_.size(),
            destination.size());
    for (std::size_t i = 0; i < spec_.size(); ++i) {
      const Tensor& to = destination[i];
      const Shape& batch = spec_[i].shape;
      require(to.dtype() == spec_[i].dtype && to.shape().rank() == batch.rank() &&
                  to.shape()[0] >= size_ && to.shape().with(0, size_) == batch,
              "[next_into] component {}, {} {}, does not fit into {} {}", i,
              name_of(spec_[i].dtype), batch, name_of(to.dtype()), to.shape());
    }
    const std::span<const std::int64_t> rows = next_batch_rows();
    if (rows.empty()) return std::nullopt;
    for (std::size_t i = 0; i < spec_.size(); ++i) {
      input_.table()->gather(i, rows, destination[i].raw());
    }
    return std::ssize(rows);
  }

  bool has_state() const override { return false; }
  void save(PositionWriter& state) const override { input_.save(state); }
  void restore(PositionReader& state) override { input_.restore(state); }
  Position position() override { return input_.position(); }

 private:
  // Empty at the end.
  std::span<const std::int64_t> next_batch_rows() {
    rows_.resize(static_cast<std::size_t>(size_));
    const std::int64_t got = input_.next_rows(rows_);
    if (got < size_ && options_.drop_remainder) return {};
    const std::span<const std::int64_t> rows =
        std::span(rows_).first(static_cast<std::size_t>(got));
    input_.table()->announce(rows);
    return rows;
  }

  Tensor component(std::size_t i, std::int64_t rows) {
    return Tensor(spec_[i].dtype, spec_[i].shape.with(0, rows), pools_[i].take(bytes_of(spec_[i])),
                  0);
  }

  std::optional<Element> gathered() {
    const std::span<const std::int64_t> rows = next_batch_rows();
    if (rows.empty()) return std::nullopt;
    Element batch;
    for (std::size_t i = 0; i < spec_.size(); ++i) {
      batch.push_back(component(i, std::ssize(rows)));
      input_.table()->gather(i, rows, batch.back().raw());
    }
    const std::int64_t count = input_.table()->rows();
    batch.sample = {.epoch = static_cast<std::uint64_t>(rows.front() / count),
                    .number = static_cast<std::uint64_t>(rows.front() % count)};
    return batch;
  }

  std::optional<Element> stacked() {
    std::vector<Element> rows;
    while (std::ssize(rows) < size_) {
      std::optional<Element> element = input_.next();
      if (!element) break;
      rows.push_back(std::move(*element));
    }
    if (rows.empty() || (std::ssize(rows) < size_ && options_.drop_remainder)) return std::nullopt;
    std::optional<Element> batch = as_they_lie(rows, spec_);
    if (!batch) batch = copied(rows);
    batch->sample = rows.front().sample;
    return batch;
  }

  Element copied(std::span<const Element> rows) {
    Element batch;
    for (std::size_t i = 0; i < spec_.size(); ++i) batch.push_back(component(i, std::ssize(rows)));
    for (std::size_t row = 0; row < rows.size(); ++row) {
      put(rows[row], static_cast<std::int64_t>(row), batch);
    }
    return batch;
  }

  void put(const Element& element, std::int64_t row, Element& batch) const {
    require(element.size() == batch.size(), "[batch] an element has {} components instead of {}",
            element.size(), batch.size());
    for (std::size_t i = 0; i < element.size(); ++i) {
      Tensor place = batch[i].rows(row, 1);
      const Tensor& from = element[i];
      require(from.defined() && from.dtype() == place.dtype() && fits(from.shape(), place.shape()),
              "[batch] component {} of an element is {} {}, which does not fill a row of {} {}", i,
              name_of(from.dtype()), from.shape(), name_of(place.dtype()), batch[i].shape());
      if (from.bytes() > 0) std::memcpy(place.raw(), from.raw(), from.bytes());
    }
  }

  // Whether `row` is (1, element…).
  static bool fits(const Shape& element, const Shape& row) {
    return std::ranges::equal(element.dims(), row.dims().subspan(1));
  }

  std::vector<ElementSpec> spec_;
  std::vector<BufferPool> pools_;
  std::int64_t size_;
  BatchOptions options_;
  std::vector<std::int64_t> rows_;
  RowPlacer placer_;
  Input input_;  // last, so that it is destroyed before what it writes to
};

class BatchNode final : public DatasetNode {
 public:
  BatchNode(NodePtr input, std::int64_t size, BatchOptions options)
      : input_(std::move(input)), size_(size), options_(options) {}

  std::string name() const override { return fmt::format("batch({})", size_); }
  std::vector<NodePtr> inputs() const override { return {input_}; }
  std::vector<ElementSpec> element_spec() const override { return spec_of(size_); }
  std::int64_t cardinality() const override {
    const std::int64_t input = input_->cardinality();
    if (input < 0) return input;
    return input / size_ + (input % size_ != 0 && !options_.drop_remainder ? 1 : 0);
  }
  std::string signature() const override { return input_->signature() + ".batch"; }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    const std::int64_t size = size_to_fill();
    return std::make_unique<BatchCursor>(input_, context, spec_of(size), size, options_);
  }

 private:
  std::vector<ElementSpec> spec_of(std::int64_t size) const {
    std::vector<ElementSpec> spec = input_->element_spec();
    for (ElementSpec& component : spec) {
      std::vector<std::int64_t> dims{size};
      dims.insert(dims.end(), component.shape.dims().begin(), component.shape.dims().end());
      component.shape = Shape(std::move(dims));
    }
    return spec;
  }

  // A batch size that gives the same batches without allocating more rows than there are elements.
  std::int64_t size_to_fill() const {
    const std::int64_t elements = input_->cardinality();
    if (elements < 0 || elements >= size_) return size_;
    return options_.drop_remainder ? elements + 1 : std::max<std::int64_t>(elements, 1);
  }

  NodePtr input_;
  std::int64_t size_;
  BatchOptions options_;
};

}  // namespace

NodePtr make_batch(NodePtr input, std::int64_t size, BatchOptions options) {
  require(size > 0, "[batch] the batch size must be at least 1, not {}", size);
  for (const ElementSpec& component : input->element_spec()) {
    require(!component.varies,
            "[batch] the elements ({}) have different extents; make them equal with map, or use "
            "padded_batch",
            describe(input->element_spec()));
  }
  return std::make_shared<BatchNode>(std::move(input), size, options);
}

}  // namespace lockstep
