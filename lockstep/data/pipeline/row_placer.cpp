#include "lockstep/data/pipeline/row_placer.h"

namespace lockstep {
namespace {

std::size_t bytes_of(const ElementSpec& spec) {
  return static_cast<std::size_t>(spec.shape.elements()) * size_of(spec.dtype);
}

}  // namespace

RowPlacer::RowPlacer(std::vector<ElementSpec> row, std::int64_t size, Device& memory)
    : row_(std::move(row)),
      size_(size),
      pools_(row_.size(), BufferPool(memory)),
      buffers_(row_.size()) {}

Element RowPlacer::place() {
  // The row's number among those that will be used, as far as known.
  const std::int64_t number = placed_++ - missing_;
  if (number % size_ == 0 || next_ == size_) next_ = 0;
  Element place;
  for (std::size_t i = 0; i < row_.size(); ++i) {
    const std::size_t bytes = bytes_of(row_[i]);
    if (next_ == 0) {
      buffers_[i] = nullptr;
      buffers_[i] = pools_[i].take(bytes * static_cast<std::size_t>(size_));
    }
    place.emplace_back(row_[i].dtype, row_[i].shape, buffers_[i],
                       bytes * static_cast<std::size_t>(next_));
  }
  ++next_;
  return place;
}

std::optional<Element> as_they_lie(std::span<const Element> rows,
                                   const std::vector<ElementSpec>& batch) {
  Element whole;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Tensor& first = rows.front()[i];
    if (!first.defined() || first.offset() != 0) return std::nullopt;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const Tensor& row = rows[r][i];
      if (row.buffer() != first.buffer() || row.offset() != r * first.bytes() ||
          row.dtype() != batch[i].dtype) {
        return std::nullopt;
      }
    }
    whole.emplace_back(batch[i].dtype, batch[i].shape.with(0, std::ssize(rows)), first.buffer(), 0);
  }
  return whole;
}

}  // namespace lockstep
