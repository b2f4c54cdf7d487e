// Stacks elements along a new outermost axis. Rows of a table are gathered directly into the batch;
// an input that makes new elements (map) writes them directly into its rows; other elements are
// copied into the batch one by one. The buffers of batches are reused once nobody holds them.
//
// It has no state: between batches, its position is that of its input. A position can therefore be
// restored with another batch size.
//
// For one of several workers, it makes smaller batches (policies File and Off), or the worker's
// rows of each global batch (Data): of a table only these are gathered, and other elements are left
// out by a PieceSelector, if possible before they are made.
#include <algorithm>

#include "lockstep/data/pipeline/buffer_pool.h"
#include "lockstep/data/pipeline/piece_selector.h"
#include "lockstep/data/pipeline/row_placer.h"
#include "lockstep/data/pipeline/share_rules.h"
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

std::size_t bytes_of(const ElementSpec& spec) {
  return static_cast<std::size_t>(spec.shape.elements()) * size_of(spec.dtype);
}

class BatchCursor final : public Cursor {
 public:
  // The spec is that of the largest batch. With a share, it makes the share's rows of each batch.
  BatchCursor(NodePtr input, const Context& context, std::vector<ElementSpec> spec,
              std::int64_t size, BatchOptions options, std::optional<WorkerShare> share)
      : spec_(std::move(spec)),
        pools_(spec_.size(), BufferPool(context.runtime->memory())),
        size_(size),
        options_(options),
        share_(share),
        selector_(context.selector),
        placer_(input->element_spec(), rows_to_place(), context.runtime->memory()),
        input_(input, context) {
    input_.write_to(placer_);
  }

  std::optional<Element> next() override {
    return input_.table() != nullptr ? gathered() : stacked();
  }

  std::int64_t skip(std::int64_t count) override {
    if (selector_ != nullptr) {
      return after_ ? Cursor::skip(count) : selector_->skip_batches(count);
    }
    std::int64_t passed = 0;
    while (passed < count) {
      const std::int64_t rows = input_.skip(size_);
      if (rows == 0 || (rows < size_ && options_.drop_remainder)) break;
      ++passed;
    }
    return passed;
  }

  std::optional<RowsWritten> next_into(std::span<Tensor> destination) override {
    if (input_.table() == nullptr) return Cursor::next_into(destination);
    require(destination.size() == spec_.size(),
            "[next_into] a batch of {} components cannot be written to {} tensors", spec_.size(),
            destination.size());
    for (std::size_t i = 0; i < spec_.size(); ++i) {
      const Tensor& to = destination[i];
      const Shape& batch = spec_[i].shape;
      require(to.dtype() == spec_[i].dtype && to.shape().rank() == batch.rank() &&
                  to.shape()[0] >= batch[0] && to.shape().with(0, batch[0]) == batch,
              "[next_into] component {}, {} {}, does not fit into {} {}", i,
              name_of(spec_[i].dtype), batch, name_of(to.dtype()), to.shape());
    }
    const std::optional<Rows> rows = next_batch_rows();
    if (!rows) return std::nullopt;
    for (std::size_t i = 0; i < spec_.size(); ++i) {
      input_.table()->gather(i, rows->numbers, destination[i].raw());
    }
    return RowsWritten{.rows = std::ssize(rows->numbers), .piece = rows->piece};
  }

  bool has_state() const override { return false; }
  void save(PositionWriter& state) const override { input_.save(state); }
  void restore(PositionReader& state) override { input_.restore(state); }
  Position position() override {
    if (selector_ == nullptr) return input_.position();
    return after_ ? *after_ : selector_->position();
  }

 private:
  // Numbers of rows of the table.
  struct Rows {
    std::span<const std::int64_t> numbers;
    std::optional<BatchPiece> piece;
  };

  // The rows of full batches, which the input may write in place.
  std::int64_t rows_to_place() const {
    return share_ ? std::max<std::int64_t>(share_->rows_of(size_).size(), 1) : size_;
  }

  // Nullopt at the end.
  std::optional<Rows> next_batch_rows() {
    rows_.resize(static_cast<std::size_t>(size_));
    const std::int64_t got = input_.next_rows(rows_);
    if (got == 0 || (got < size_ && options_.drop_remainder)) return std::nullopt;
    Rows rows{.numbers = std::span(rows_).first(static_cast<std::size_t>(got)), .piece = {}};
    if (share_) {
      rows.piece = {.rows_of_batch = got, .rows = share_->rows_of(got)};
      rows.numbers = rows.numbers.subspan(static_cast<std::size_t>(rows.piece->rows.begin),
                                          static_cast<std::size_t>(rows.piece->rows.size()));
    }
    input_.table()->announce(rows.numbers);
    return rows;
  }

  Tensor component(std::size_t i, std::int64_t rows) {
    return Tensor(spec_[i].dtype, spec_[i].shape.with(0, rows), pools_[i].take(bytes_of(spec_[i])),
                  0);
  }

  std::optional<Element> gathered() {
    const std::optional<Rows> rows = next_batch_rows();
    if (!rows) return std::nullopt;
    const std::span<const std::int64_t> numbers = rows->numbers;
    Element batch;
    for (std::size_t i = 0; i < spec_.size(); ++i) {
      batch.push_back(component(i, std::ssize(numbers)));
      input_.table()->gather(i, numbers, batch.back().raw());
    }
    batch.piece = rows->piece;
    if (numbers.empty()) return batch;
    const std::int64_t count = input_.table()->rows();
    batch.sample = {.epoch = static_cast<std::uint64_t>(numbers.front() / count),
                    .number = static_cast<std::uint64_t>(numbers.front() % count)};
    return batch;
  }

  std::optional<Element> stacked() {
    if (selector_ != nullptr) return stacked_piece();
    const std::vector<Element> rows = next_elements(input_, size_);
    if (rows.empty() || (std::ssize(rows) < size_ && options_.drop_remainder)) return std::nullopt;
    if (share_) return stacked_own(rows);
    return stacked(rows);
  }

  // A table whose position was resharded gives elements.
  Element stacked_own(std::span<const Element> rows) {
    const BatchPiece piece{.rows_of_batch = std::ssize(rows),
                           .rows = share_->rows_of(std::ssize(rows))};
    const std::span<const Element> own = rows.subspan(static_cast<std::size_t>(piece.rows.begin),
                                                      static_cast<std::size_t>(piece.rows.size()));
    Element batch = own.empty() ? copied({}) : stacked(own);
    batch.piece = piece;
    return batch;
  }

  std::optional<Element> stacked_piece() {
    std::optional<PieceRows> rows = next_piece(*selector_, input_, after_);
    if (!rows) return std::nullopt;
    Element batch = rows->elements.empty() ? copied({}) : stacked(rows->elements);
    batch.piece = rows->piece;
    return batch;
  }

  Element stacked(std::span<const Element> rows) {
    std::optional<Element> batch = as_they_lie(rows, spec_);
    if (!batch) batch = copied(rows);
    batch->sample = rows.front().sample;
    return std::move(*batch);
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
  std::optional<WorkerShare> share_;
  std::shared_ptr<PieceSelector> selector_;  // null without a share, and for a table
  std::optional<Position> after_;            // of the selector's base, after the last batch
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
  ShareRules share_rules() const override {
    return {.rows = ShareRules::Rows::Own, .batch = size_};
  }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    const std::int64_t size = size_to_fill(size_);
    if (!context.share) {
      return std::make_unique<BatchCursor>(input_, context, spec_of(size), size, options_,
                                           std::nullopt);
    }
    const WorkerShare& share = *context.share;
    Context below = context.without_share();
    if (!context.slices()) {
      const std::int64_t own = size_to_fill(own_batch_rows(share, size_));
      return std::make_unique<BatchCursor>(input_, below, spec_of(own), own, options_,
                                           std::nullopt);
    }
    if (input_->cursor(below)->table() == nullptr) {
      below.selector =
          std::make_shared<PieceSelector>(input_, below, share, size, options_.drop_remainder);
    }
    return std::make_unique<BatchCursor>(input_, below, spec_of(share.most_rows_of(size)), size,
                                         options_, share);
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
  std::int64_t size_to_fill(std::int64_t size) const {
    const std::int64_t elements = input_->cardinality();
    if (elements < 0 || elements >= size) return size;
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
