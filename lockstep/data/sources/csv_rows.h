// CsvRows: the rows of a CSV file, not yet taken apart. A row ends with its line, unless the line's
// end lies within quotes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/data/sources/byte_stream.h"

namespace lockstep {

struct CsvRow {
  std::string_view text;  // without the line's end
  bool quoted = false;    // whether it holds quotes that may mean something
  std::int64_t line = 0;  // its first, from 1
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

  // The next row that is not an empty line, which stays where it is until the next call; nothing at
  // the end. DataError, naming the file, the line and the cause, where it has no end or cannot be
  // read; there is no next one then.
  std::optional<CsvRow> next();

  // Restoring leaves the rows where they were where it throws.
  std::string save() const;
  void restore(std::string_view state);

 private:
  enum class Place { FieldBegin, Field, Quotes, QuoteInQuotes };
  // How far the end of a row was looked for.
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
  std::int64_t lines_ = 0;  // read
  bool ended_ = false;      // by damage
};

}  // namespace lockstep
