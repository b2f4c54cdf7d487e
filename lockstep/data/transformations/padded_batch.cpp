// Stacks elements with different extents along a new outermost axis. Each is padded at the end of
// its axes to the given extents, or to those of the largest element of the batch. Elements are
// copied once, directly into the batch.
//
// Like batch it has no state: between batches, its position is that of its input.
//
// For one of several workers with the policy Data: if the extents are given, only the worker's rows
// are made. Otherwise those of the largest element of the global batch have to be found, so the
// whole batch is made, and the worker's rows are sliced from it.
#include <algorithm>
#include <utility>

#include "lockstep/data/pipeline/buffer_pool.h"
#include "lockstep/data/pipeline/piece_selector.h"
#include "lockstep/data/pipeline/share_rules.h"
#include "lockstep/data/transformations.h"

namespace lockstep {
namespace {

// Fills `count` elements of a dtype with a value.
void fill(DType dtype, double value, std::int64_t count, std::byte* to) {
  if (value == 0) {
    std::fill_n(to, static_cast<std::size_t>(count) * size_of(dtype), std::byte{0});
    return;
  }
  dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    std::fill_n(reinterpret_cast<T*>(to), count, static_cast<T>(value));
  });
}

// Copies a tensor into the corner of a larger row-major one, line by line of the innermost axis.
void copy_into_corner(const Tensor& from, std::span<const std::int64_t> extents, std::byte* to) {
  const std::span<const std::int64_t> dims = from.shape().dims();
  if (from.elements() == 0) return;
  if (std::ranges::equal(dims, extents)) {
    std::memcpy(to, from.raw(), from.bytes());
    return;
  }
  const std::size_t line = static_cast<std::size_t>(dims.back()) * size_of(from.dtype());
  std::vector<std::int64_t> at(dims.size(), 0);
  const std::byte* source = from.raw();
  for (;;) {
    std::int64_t place = 0;
    for (std::size_t axis = 0; axis < dims.size(); ++axis) place = place * extents[axis] + at[axis];
    std::memcpy(to + static_cast<std::size_t>(place) * size_of(from.dtype()), source, line);
    source += line;
    std::size_t axis = dims.size() - 1;
    while (axis > 0 && ++at[axis - 1] == dims[axis - 1]) at[--axis] = 0;
    if (axis == 0) return;
  }
}

class PaddedBatchCursor final : public Cursor {
 public:
  PaddedBatchCursor(NodePtr input, const Context& context, std::vector<ElementSpec> spec,
                    std::int64_t size, PaddedBatchOptions options)
      : spec_(std::move(spec)),
        pools_(spec_.size(), BufferPool(context.runtime->memory())),
        size_(size),
        options_(std::move(options)),
        selector_(context.selector),
        input_(std::move(input), context) {}

  std::optional<Element> next() override {
    if (error_) std::rethrow_exception(error_);
    if (selector_ != nullptr) return next_of_share();
    if (after_.base == nullptr) after_ = input_.position();
    const std::vector<Element> rows = next_elements(input_, size_);
    if (rows.empty() || (std::ssize(rows) < size_ && options_.drop_remainder)) {
      after_ = input_.position();
      return std::nullopt;
    }
    try {
      Element batch = assembled(rows);
      after_ = input_.position();
      return batch;
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
  }

  std::int64_t skip(std::int64_t count) override {
    if (selector_ != nullptr) {
      return after_piece_ ? Cursor::skip(count) : selector_->skip_batches(count);
    }
    std::int64_t passed = 0;
    while (passed < count) {
      const std::int64_t rows = input_.skip(size_);
      if (rows == 0 || (rows < size_ && options_.drop_remainder)) break;
      ++passed;
    }
    after_ = input_.position();
    return passed;
  }

  bool has_state() const override { return false; }
  void save(PositionWriter&) const override {
    fail<InternalError>("a cursor without state was asked to save it");
  }
  void restore(PositionReader& state) override { input_.restore(state); }
  Position position() override {
    if (selector_ != nullptr) return after_piece_ ? *after_piece_ : selector_->position();
    return after_.base == nullptr ? input_.position() : after_;
  }

 private:
  std::optional<Element> next_of_share() {
    const std::optional<Position> before = after_piece_;
    const std::optional<PieceRows> rows = next_piece(*selector_, input_, after_piece_);
    if (!rows) return std::nullopt;
    try {
      Element batch = assembled(rows->elements);
      batch.piece = rows->piece;
      return batch;
    } catch (...) {
      after_piece_ = before;
      error_ = std::current_exception();
      throw;
    }
  }

  Element assembled(std::span<const Element> rows) {
    Element batch;
    for (std::size_t i = 0; i < spec_.size(); ++i) batch.push_back(component(i, rows));
    if (!rows.empty()) batch.sample = rows.front().sample;
    return batch;
  }

  Tensor component(std::size_t i, std::span<const Element> rows) {
    const std::vector<std::int64_t> extents = extents_of(i, rows);
    const std::int64_t row_elements = Shape(extents).elements();
    std::vector<std::int64_t> dims{std::ssize(rows)};
    dims.insert(dims.end(), extents.begin(), extents.end());
    const std::size_t row_bytes = static_cast<std::size_t>(row_elements) * size_of(spec_[i].dtype);
    Tensor whole(spec_[i].dtype, Shape(std::move(dims)), pools_[i].take(row_bytes * rows.size()),
                 0);
    const double value = options_.values.empty() ? 0 : options_.values[i];
    for (std::size_t row = 0; row < rows.size(); ++row) {
      std::byte* to = whole.raw() + row * row_bytes;
      if (rows[row][i].elements() < row_elements) fill(spec_[i].dtype, value, row_elements, to);
      copy_into_corner(rows[row][i], extents, to);
    }
    return whole;
  }

  // The extents of a row of the batch.
  std::vector<std::int64_t> extents_of(std::size_t i, std::span<const Element> rows) const {
    const auto rank = static_cast<std::size_t>(spec_[i].shape.rank()) - 1;
    const Shape* given = options_.shapes.empty() ? nullptr : &options_.shapes[i];
    std::vector<std::int64_t> extents(rank, 0);
    if (given != nullptr) std::ranges::copy(given->dims(), extents.begin());
    for (const Element& row : rows) {
      require(row.size() == spec_.size(), "[padded_batch] {} has {} components instead of {}",
              describe(row.sample), row.size(), spec_.size());
      const Tensor& tensor = row[i];
      require(tensor.defined() && tensor.dtype() == spec_[i].dtype &&
                  static_cast<std::size_t>(tensor.shape().rank()) == rank,
              "[padded_batch] {}: component {} is {} {}; expected {} with {} axes",
              describe(row.sample), i, name_of(tensor.dtype()), tensor.shape(),
              name_of(spec_[i].dtype), rank);
      for (std::size_t axis = 0; axis < rank; ++axis) {
        const std::int64_t extent = tensor.shape().dims()[axis];
        if (given != nullptr && extent > extents[axis]) {
          fail<UsageError>(
              "[padded_batch] {}: component {}, {}, is larger than {}, the shape to pad to",
              describe(row.sample), i, tensor.shape(), *given);
        }
        extents[axis] = std::max(extents[axis], extent);
      }
    }
    return extents;
  }

  std::vector<ElementSpec> spec_;
  std::vector<BufferPool> pools_;
  std::int64_t size_;
  PaddedBatchOptions options_;
  std::exception_ptr error_;
  Position after_;                           // of the input, after the last batch returned
  std::shared_ptr<PieceSelector> selector_;  // null without a share
  std::optional<Position> after_piece_;      // of its base, after the last batch returned
  Input input_;
};

class PaddedBatchNode final : public DatasetNode {
 public:
  PaddedBatchNode(NodePtr input, std::int64_t size, PaddedBatchOptions options)
      : input_(std::move(input)), size_(size), options_(std::move(options)) {}

  std::string name() const override { return fmt::format("padded_batch({})", size_); }
  std::vector<NodePtr> inputs() const override { return {input_}; }
  std::vector<ElementSpec> element_spec() const override {
    std::vector<ElementSpec> spec = input_->element_spec();
    for (std::size_t i = 0; i < spec.size(); ++i) {
      if (!options_.shapes.empty()) {
        spec[i].shape = options_.shapes[i];
        spec[i].varies = false;
      }
      std::vector<std::int64_t> dims{size_};
      dims.insert(dims.end(), spec[i].shape.dims().begin(), spec[i].shape.dims().end());
      spec[i].shape = Shape(std::move(dims));
    }
    return spec;
  }
  std::int64_t cardinality() const override {
    const std::int64_t input = input_->cardinality();
    if (input < 0) return input;
    return input / size_ + (input % size_ != 0 && !options_.drop_remainder ? 1 : 0);
  }
  std::string signature() const override { return input_->signature() + ".padded_batch"; }
  ShareRules share_rules() const override {
    return {.rows = options_.shapes.empty() ? ShareRules::Rows::OfWhole : ShareRules::Rows::Own,
            .batch = size_};
  }
  std::unique_ptr<Cursor> cursor(const Context& context) const override {
    Context below = context.without_share();
    std::int64_t size = size_;
    if (context.slices()) {
      below.selector = std::make_shared<PieceSelector>(input_, below, *context.share, size_,
                                                       options_.drop_remainder);
    } else if (context.share) {
      size = own_batch_rows(*context.share, size_);
    }
    return std::make_unique<PaddedBatchCursor>(input_, below, element_spec(), size, options_);
  }

 private:
  NodePtr input_;
  std::int64_t size_;
  PaddedBatchOptions options_;
};

}  // namespace

NodePtr make_padded_batch(NodePtr input, std::int64_t size, PaddedBatchOptions options) {
  require(size > 0, "[padded_batch] the batch size must be at least 1, not {}", size);
  const std::vector<ElementSpec> spec = input->element_spec();
  require(options.shapes.empty() || options.shapes.size() == spec.size(),
          "[padded_batch] {} shapes were given for the {} components of an element ({})",
          options.shapes.size(), spec.size(), describe(spec));
  require(options.values.empty() || options.values.size() == spec.size(),
          "[padded_batch] {} padding values were given for the {} components of an element ({})",
          options.values.size(), spec.size(), describe(spec));
  for (std::size_t i = 0; i < spec.size(); ++i) {
    const bool half = spec[i].dtype == DType::F16 || spec[i].dtype == DType::BF16;
    const double value = options.values.empty() ? 0 : options.values[i];
    require(!half || value == 0,
            "[padded_batch] component {} is {}, which can only be padded with 0, not with {}", i,
            name_of(spec[i].dtype), value);
    if (options.shapes.empty()) continue;
    require(options.shapes[i].rank() == spec[i].shape.rank(),
            "[padded_batch] component {} has the shape {}, which cannot be padded to {}: the "
            "number of axes differs",
            i, spec[i].shape, options.shapes[i]);
  }
  return std::make_shared<PaddedBatchNode>(std::move(input), size, std::move(options));
}

}  // namespace lockstep
