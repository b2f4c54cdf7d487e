#include "lockstep/data/sources/table.h"

#include <algorithm>

#include "lockstep/data/sources/row_loops.h"

namespace lockstep {
namespace {

// How many rows ahead of the one being written are prefetched.
constexpr std::size_t kLookAhead = 4;

RowAhead to_be_read(const std::byte* row, std::size_t bytes) {
  return {.from = row, .bytes = std::min(bytes, kMostAhead)};
}

// Calls write(bytes of the row, index, a later row to prefetch) for each row.
template <class Write>
void for_each_row(const Tensor& table, std::size_t row_bytes, std::span<const std::int64_t> rows,
                  Write write) {
  const std::byte* from = table.raw();
  const std::int64_t table_rows = table.shape()[0];
  if (rows.empty()) return;
  // Most rows of a batch are from the same epoch: subtracting its first number avoids a division.
  const std::int64_t first = rows[0] - rows[0] % table_rows;
  const auto place = [&](std::size_t i) {
    std::int64_t row = rows[i] - first;
    if (row < 0 || row >= table_rows) row = rows[i] % table_rows;
    return from + static_cast<std::size_t>(row) * row_bytes;
  };
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t later = i + kLookAhead;
    write(place(i), i, later < rows.size() ? to_be_read(place(later), row_bytes) : RowAhead());
  }
}

template <std::size_t bytes>
void copy_small_rows(const Tensor& from, std::span<const std::int64_t> rows, std::byte* to) {
  for_each_row(from, bytes, rows, [&](const std::byte* row, std::size_t i, RowAhead later) {
    announce(later);
    std::memcpy(to + i * bytes, row, bytes);
  });
}

void copy_rows(const Tensor& from, std::size_t row_bytes, std::span<const std::int64_t> rows,
               std::byte* to) {
  switch (row_bytes) {
    case 0:
      return;
    case 1:
      return copy_small_rows<1>(from, rows, to);
    case 4:
      return copy_small_rows<4>(from, rows, to);
    case 8:
      return copy_small_rows<8>(from, rows, to);
    default:
      for_each_row(from, row_bytes, rows, [&](const std::byte* row, std::size_t i, RowAhead later) {
        copy_row(row, row_bytes, to + i * row_bytes, later);
      });
  }
}

template <class T>
void convert_rows(const Tensor& from, std::size_t row_elements, std::span<const std::int64_t> rows,
                  T scale, std::byte* to) {
  T* target = reinterpret_cast<T*>(to);
  if (row_elements == 1) {
    for_each_row(from, 1, rows, [&](const std::byte* row, std::size_t i, RowAhead later) {
      announce(later);
      target[i] = static_cast<T>(std::to_integer<std::uint8_t>(*row)) * scale;
    });
    return;
  }
  for_each_row(from, row_elements, rows, [&](const std::byte* row, std::size_t i, RowAhead later) {
    widen_row(reinterpret_cast<const std::uint8_t*>(row), row_elements, scale,
              target + i * row_elements, later);
  });
}

Shape row_shape(const Shape& shape) {
  return Shape(std::vector<std::int64_t>(shape.dims().begin() + 1, shape.dims().end()));
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  require(!columns_.empty(), "[from_tensor_slices] a data set needs at least one tensor");
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const Column& column = columns_[i];
    require(column.stored.defined(), "[from_tensor_slices] component {} is an undefined tensor", i);
    const Shape& shape = column.stored.shape();
    require(shape.rank() > 0,
            "[from_tensor_slices] component {} is a scalar; it needs an axis of samples", i);
    if (i == 0) rows_ = shape[0];
    require(shape[0] == rows_, "[from_tensor_slices] component 0 has {} rows, component {} has {}",
            rows_, i, shape[0]);
    ensure(column.dtype == column.stored.dtype() ||
               (column.stored.dtype() == DType::U8 &&
                (column.dtype == DType::F32 || column.dtype == DType::I32)),
           "a column of {} cannot be returned as {}", name_of(column.stored.dtype()),
           name_of(column.dtype));
    spec_.push_back({column.dtype, row_shape(shape)});
  }
}

Element Table::element(std::int64_t number) const {
  const std::int64_t row = number % rows_;
  Element element;
  element.sample = {.epoch = static_cast<std::uint64_t>(number / rows_),
                    .number = static_cast<std::uint64_t>(row)};
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const Column& column = columns_[i];
    if (column.dtype == column.stored.dtype()) {
      element.push_back(column.stored.rows(row, 1).reshaped(spec_[i].shape));
    } else {
      Tensor converted(column.dtype, spec_[i].shape);
      gather(i, {&row, 1}, converted.raw());
      element.push_back(std::move(converted));
    }
  }
  return element;
}

void Table::announce(std::span<const std::int64_t> rows) const {
  if (rows.empty()) return;
  const std::span<const std::int64_t> first = rows.first(std::min(kLookAhead, rows.size()));
  for (const Column& column : columns_) {
    const std::size_t bytes = column.stored.bytes() / static_cast<std::size_t>(rows_);
    for (const std::int64_t number : first) {
      const auto row = static_cast<std::size_t>(number % rows_);
      lockstep::announce(to_be_read(column.stored.raw() + row * bytes, bytes));
    }
  }
}

void Table::gather(std::size_t column, std::span<const std::int64_t> rows, std::byte* to) const {
  const Tensor& stored = columns_[column].stored;
  const auto row_elements = static_cast<std::size_t>(spec_[column].shape.elements());
  if (columns_[column].dtype == stored.dtype()) {
    copy_rows(stored, row_elements * size_of(stored.dtype()), rows, to);
  } else if (columns_[column].dtype == DType::F32) {
    convert_rows<float>(stored, row_elements, rows, columns_[column].scale, to);
  } else {
    convert_rows<std::int32_t>(stored, row_elements, rows, 1, to);
  }
}

}  // namespace lockstep
