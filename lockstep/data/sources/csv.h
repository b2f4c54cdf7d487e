// CSV files (RFC 4180): rows of fields between delimiters; quoted fields may contain delimiters,
// line ends and doubled quotes. Plain or compressed with gzip.
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

// One component of a row: one column as a scalar, or several of the same dtype as a vector.
struct CsvComponent {
  // Names of columns. If empty, all columns that no other component names, as a vector.
  std::vector<std::string> columns = {};
  // f32, f64, i32, i64, bool (0, 1, true, false), or u8: the text of one column as bytes.
  DType dtype = DType::F32;
  // The value of a missing field, written as in a file. Without it, a missing field is a DataError,
  // except that a missing text is kept as it is.
  std::optional<std::string> missing = std::nullopt;
};

struct CsvOptions {
  // What to read from each row. By default, every column, as one vector of f32.
  std::vector<CsvComponent> components = {CsvComponent{}};
  bool header = true;  // the first row names the columns
  // The names of all columns, instead of those in the header. Without either, columns are named by
  // their numbers, starting with "0".
  std::vector<std::string> names = {};
  char delimiter = ',';
  bool quotes = true;                                    // false: " is an ordinary character
  std::vector<std::string> missing_values = {"", "NA"};  // how a missing field is written
  std::size_t longest_row = std::size_t{64} << 20;       // bytes; a longer one is a DataError
  std::size_t buffer = 256 << 10;
};

// Reads the rows of a file in order. Empty lines and spaces around numbers are ignored. Used by one
// thread at a time.
class CsvReader {
 public:
  // Reads the header. UsageError for invalid options, DataError for a file that cannot be read or
  // lacks a column.
  explicit CsvReader(const std::filesystem::path& file, CsvOptions options = {});
  explicit CsvReader(std::unique_ptr<RandomAccess> file, CsvOptions options = {});

  const std::string& name() const { return rows_.name(); }
  // The names of the file's columns.
  const std::vector<std::string>& names() const { return names_; }
  // The number of the next row, from 0, not counting the header.
  std::int64_t record() const { return record_; }
  std::size_t components() const { return options_.components.size(); }
  DType dtype(std::size_t component) const { return options_.components[component].dtype; }
  // The shape of a component; nullopt for text, whose length varies from row to row.
  const std::optional<Shape>& shape(std::size_t component) const { return shapes_[component]; }

  // The next row, one tensor per component; nullopt at the end. DataError says the file, line and
  // column, what was found and what was expected. The reader then continues with the next row, or
  // is at the end if it cannot tell where the next row begins.
  std::optional<std::vector<Tensor>> next();
  // The same, writing component i to to[i]; no component may be text. False at the end. If a row
  // throws, what it has written is undefined.
  bool next_into(std::span<std::byte* const> to);
  // Skips up to `count` rows; returns how many. It only looks for their ends.
  std::int64_t skip(std::int64_t count);

  // If restore() throws, the reader keeps its position.
  std::string save() const;
  void restore(std::string_view state);

 private:
  // Where a column of the file goes.
  struct Target {
    std::optional<std::size_t> component = std::nullopt;  // nullopt: not read
    std::size_t element = 0;
  };
  struct Destination {
    std::span<std::byte* const> numbers;  // by component
    std::span<Tensor> texts;              // by component; empty if no component is text
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
  std::string unquoted_;         // the current field, if it had doubled quotes
  std::int64_t record_ = 0;
};

}  // namespace lockstep
