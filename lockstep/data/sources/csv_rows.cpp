#include "lockstep/data/sources/csv_rows.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/data/pipeline/position.h"
#include "lockstep/data/sources/text.h"

namespace lockstep {

CsvRows::CsvRows(std::unique_ptr<RandomAccess> file, CsvRowOptions options)
    : options_(options), stream_(std::move(file), {.buffer = options.buffer}) {
  skip_byte_order_mark(stream_);
}

// After this there is no next row.
void CsvRows::end(const std::string& why) {
  ended_ = true;
  throw DataError(why);
}

std::string_view CsvRows::peek(std::size_t count) {
  try {
    return stream_.peek(count);
  } catch (const DataError& error) {
    end(fmt::format("{} (in the row at line {})", error.what(), lines_ + 1));
  }
}

// Looks for the line feed that ends the row at the beginning of the window; `search` stops there or
// at the end of the window. Rows without a quote, which are most, use memchr; others are scanned
// field by field from the beginning.
bool CsvRows::find_end(std::string_view window, Search& search) const {
  if (!search.quoted) {
    const std::size_t found = std::min(window.find('\n', search.done), window.size());
    const std::string_view passed = window.substr(search.done, found - search.done);
    if (!options_.quotes || passed.find('"') == std::string_view::npos) {
      search.done = found;
      return found < window.size();
    }
    search = {.done = 0, .quoted = true, .place = Place::FieldBegin};
  }
  for (; search.done < window.size(); ++search.done) {
    const char c = window[search.done];
    if (search.place == Place::Quotes) {
      search.done = std::min(window.find('"', search.done), window.size() - 1);
      if (window[search.done] == '"') search.place = Place::QuoteInQuotes;
    } else if (c == '\n') {
      return true;
    } else if (c == options_.delimiter) {
      search.place = Place::FieldBegin;
    } else if (c == '"' && search.place != Place::Field) {
      search.place = Place::Quotes;  // opened, or doubled
    } else {
      search.place = Place::Field;
    }
  }
  return false;
}

std::optional<CsvRow> CsvRows::next() {
  if (ended_) return std::nullopt;
  for (;;) {
    Search search;
    std::string_view window;
    bool found = false;
    do {
      window = peek(search.done + 1);
      if (window.size() == search.done) break;  // the last line has no line feed
      found = find_end(window, search);
      if (search.done > options_.longest) {
        end(fmt::format("{}: line {}: a row of more than {} bytes", name(), lines_ + 1,
                        options_.longest));
      }
    } while (!found);
    if (window.empty()) return std::nullopt;
    if (!found && search.place == Place::Quotes) {
      end(fmt::format("{}: line {}: a quote in this row is never closed", name(), lines_ + 1));
    }
    CsvRow row{.text = window.substr(0, search.done), .quoted = search.quoted, .line = lines_ + 1};
    if (row.quoted) lines_ += std::ranges::count(row.text, '\n');
    ++lines_;
    stream_.consume(search.done + (found ? 1 : 0));
    if (row.text.ends_with('\r')) row.text.remove_suffix(1);
    if (!row.text.empty()) return row;
  }
}

std::string CsvRows::save() const {
  PositionWriter state;
  state.word(static_cast<std::uint64_t>(lines_));
  state.word(ended_ ? 1 : 0);
  state.text(stream_.save());
  return state.bytes();
}

void CsvRows::restore(std::string_view bytes) {
  PositionReader state(bytes);
  const auto lines = static_cast<std::int64_t>(state.word());
  const bool ended = state.word() != 0;
  const std::string_view stream = state.text();
  state.expect_end();
  stream_.restore(stream);
  lines_ = lines;
  ended_ = ended;
}

}  // namespace lockstep
