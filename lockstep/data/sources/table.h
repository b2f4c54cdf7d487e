// Table: samples in memory. A column is a tensor whose outermost axis is the samples; a row is one
// sample. A column may be stored in a narrower type than it is returned in, such as images as
// bytes. Its rows are converted when they are gathered, which costs less than the saved traffic.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

struct Column {
  Tensor stored;
  DType dtype = DType::F32;  // returned type; if it differs, stored is u8 and this f32 or i32
  float scale = 1;           // factor of the conversion to f32
};

class Table {
 public:
  // UsageError if the columns have different numbers of rows.
  explicit Table(std::vector<Column> columns);

  std::int64_t rows() const { return rows_; }
  std::size_t columns() const { return columns_.size(); }
  // The dtype and shape of a row, column by column.
  const std::vector<ElementSpec>& spec() const { return spec_; }

  // The row with this number, as in Cursor::next_rows.
  Element element(std::int64_t number) const;
  // Prefetches the first of the rows that are gathered next.
  void announce(std::span<const std::int64_t> rows) const;
  // Writes these rows of a column one after the other; numbers as in Cursor::next_rows.
  void gather(std::size_t column, std::span<const std::int64_t> rows, std::byte* to) const;

 private:
  std::vector<Column> columns_;
  std::vector<ElementSpec> spec_;
  std::int64_t rows_ = 0;
};

}  // namespace lockstep
