// Table: samples in memory. A column is a tensor whose outermost axis counts the samples; a row is
// one sample. A column may be stored narrower than it is handed out, images as bytes say, and is
// then converted as its rows are gathered, which costs less than the memory traffic it saves.
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
  DType dtype = DType::F32;  // handed out as; where it differs, stored is u8 and this f32 or i32
  float scale = 1;           // multiplies what is converted to f32
};

class Table {
 public:
  // UsageError where the columns differ in their number of rows.
  explicit Table(std::vector<Column> columns);

  std::int64_t rows() const { return rows_; }
  std::size_t columns() const { return columns_.size(); }
  // The dtype and shape of a row, column by column.
  const std::vector<ElementSpec>& spec() const { return spec_; }

  // The row of a number as Cursor::next_rows counts them.
  Element element(std::int64_t number) const;
  // Tells the memory system which rows are gathered next: the sooner, the less they are waited for.
  void announce(std::span<const std::int64_t> rows) const;
  // Writes these rows of a column one after the other; numbers as Cursor::next_rows counts them.
  void gather(std::size_t column, std::span<const std::int64_t> rows, std::byte* to) const;

 private:
  std::vector<Column> columns_;
  std::vector<ElementSpec> spec_;
  std::int64_t rows_ = 0;
};

}  // namespace lockstep
