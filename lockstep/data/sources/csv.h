// CSV files (RFC 4180): rows of fields between delimiters, which may be quoted and then hold
// delimiters, line ends and doubled quotes; plain, or compressed with gzip.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/sources/csv_rows.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep {

// One component of a row: a column as a scalar, or several of a dtype as a vector.
struct CsvComponent {
  // Names of columns. None: all columns that no other component names, as a vector.
  std::vector<std::string> columns = {};
  // f32, f64, i32, i64, bool (0, 1, true, false), or u8: the text of one column, its bytes.
  DType dtype = DType::F32;
  // What stands in for a missing field, written as in a file; without it, one is a DataError (of
  // text, an empty one is just that).
  std::optional<std::string> missing = std::nullopt;
};

struct CsvOptions {
  // What to read of each row. Nothing said: every column, as one vector of f32.
  std::vector<CsvComponent> components = {CsvComponent{}};
  bool header = true;  // the first row names the columns
  // Names of the file's columns, all of them, in place of those in the header. Without either,
  // columns are named by their numbers, "0" first.
  std::vector<std::string> names = {};
  char delimiter = ',';
  bool quotes = true;                                    // otherwise a character like any other
  std::vector<std::string> missing_values = {"", "NA"};  // what a missing field looks like
  std::size_t longest_row = std::size_t{64} << 20;       // bytes; a longer one is a DataError
  std::size_t buffer = 256 << 10;
};

// Reads a file's rows in order. Empty lines are passed over, and spaces around numbers. Used by one
// thread at a time.
class CsvReader {
 public:
  // Reads the header. UsageError for options that cannot be, DataError for a file that cannot be
  // read or lacks a column.
  explicit CsvReader(const std::filesystem::path& file, CsvOptions options = {});
  explicit CsvReader(std::unique_ptr<RandomAccess> file, CsvOptions options = {});

  const std::string& name() const { return rows_.name(); }
  // Of the file's columns.
  const std::vector<std::string>& names() const { return names_; }
  // The number of the next row, from 0, the header not counted.
  std::int64_t record() const { return record_; }
  std::size_t components() const { return options_.components.size(); }
  DType dtype(std::size_t component) const { return options_.components[component].dtype; }
  // Of a component; nothing where it is text, whose length differs from row to row.
  const std::optional<Shape>& shape(std::size_t component) const { return shapes_[component]; }

  // The next row, one tensor a component; nothing at the end. DataError, naming the file, the line
  // and the column, what was found and what was expected. The reader then stands behind the row, or
  // at its end where there is no telling where the next one begins.
  std::optional<std::vector<Tensor>> next();
  // The same, written where `to` says for each component, none of which may be text; false at the
  // end. What a row that throws has written there means nothing.
  bool next_into(std::span<std::byte* const> to);
  // Passes over up to `count` rows; returns over how many. Looks for their ends alone.
  std::int64_t skip(std::int64_t count);

  // Restoring leaves the reader where it was where it throws.
  std::string save() const;
  void restore(std::string_view state);

 private:
  // Where a column of the file goes.
  struct Target {
    std::optional<std::size_t> component = std::nullopt;  // nowhere, where there is none
    std::size_t element = 0;
  };
  struct Destination {
    std::span<std::byte* const> numbers;  // by component
    std::span<Tensor> texts;              // by component; empty where there can be none
  };

  void name_columns();
  void bind();
  std::size_t index_of(const std::string& column) const;
  void parse(const CsvRow& row, const Destination& to);
  std::string_view unquote(const CsvRow& row, std::size_t column, std::size_t& at);
  std::vector<std::string> fields(const CsvRow& row);
  void store(const CsvRow& row, std::size_t column, std::string_view field, bool quoted,
             const Destination& to) const;
  std::string place(const CsvRow& row, std::size_t column) const;

  CsvOptions options_;
  CsvRows rows_;
  std::vector<std::string> names_;
  std::vector<std::optional<Shape>> shapes_;  // by component
  std::vector<std::size_t> offsets_;          // by component, in the memory of one row
  std::size_t row_bytes_ = 0;
  bool has_text_ = false;
  std::vector<Target> targets_;  // by column
  std::string unquoted_;         // the field in hand, where it had doubled quotes
  std::int64_t record_ = 0;
};

}  // namespace lockstep
