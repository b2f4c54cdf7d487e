// CsvRows: the rows of a CSV file, not yet split into fields. A row ends at the end of a line,
// unless that is inside quotes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/data/sources/byte_stream.h"

namespace lockstep {

struct CsvRow {
  std::string_view text;  // without the line end
  bool quoted = false;    // whether it contains quotes and .quotes is set
  std::int64_t line = 0;  // its first line, from 1
};

struct CsvRowOptions {
  char delimiter = ',';
  bool quotes = true;
  std::size_t longest = std::size_t{64} << 20;
  std::size_t buffer = 256 << 10;
};

// Used by one thread at a time.
class CsvRows {
 public:
  CsvRows(std::unique_ptr<RandomAccess> file, CsvRowOptions options);

  const std::string& name() const { return stream_.name(); }

  // The next row that is not an empty line, valid until the next call; nullopt at the end.
  // DataError, naming the file, the line and the cause, if it has no end or cannot be read; that is
  // the end of the rows.
  std::optional<CsvRow> next();

  // If restore() throws, the position does not change.
  std::string save() const;
  void restore(std::string_view state);

 private:
  enum class Place { FieldBegin, Field, Quotes, QuoteInQuotes };
  // How far the search for the end of a row has got.
  struct Search {
    std::size_t done = 0;
    bool quoted = false;
    Place place = Place::FieldBegin;
  };

  std::string_view peek(std::size_t count);
  bool find_end(std::string_view window, Search& search) const;
  [[noreturn]] void end(const std::string& why);

  CsvRowOptions options_;
  ByteStream stream_;
  std::int64_t lines_ = 0;  // read so far
  bool ended_ = false;      // by damage
};

}  // namespace lockstep
