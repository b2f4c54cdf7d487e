#include "lockstep/data/sources/csv.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/data/pipeline/position.h"
#include "lockstep/data/sources/csv_value.h"

namespace lockstep {
namespace {

constexpr std::size_t kAlignment = 8;   // of a component in the memory of a row
constexpr std::size_t kMostShown = 40;  // characters of a field in a message

bool is_read(DType dtype) {
  return dtype != DType::F16 && dtype != DType::BF16;
}

std::string shown(std::string_view field) {
  if (field.size() <= kMostShown) return fmt::format("'{}'", field);
  return fmt::format("'{}…'", field.substr(0, kMostShown));
}

Tensor text_tensor(std::string_view text) {
  Tensor tensor(DType::U8, {static_cast<std::int64_t>(text.size())});
  if (!text.empty()) std::memcpy(tensor.raw(), text.data(), text.size());
  return tensor;
}

void check(const CsvOptions& options) {
  constexpr std::string_view kTaken = "\"\n\r+-.";
  const auto code = static_cast<unsigned char>(options.delimiter);
  require(
      kTaken.find(options.delimiter) == std::string_view::npos && std::isalnum(code) == 0,
      "[csv] the character {:#04x} cannot be the delimiter: it may be part of a number, a quote "
      "or a line end",
      code);
  require(!options.components.empty(), "[csv] .components is empty; name at least one");
  std::size_t rests = 0;
  for (const CsvComponent& component : options.components) {
    const std::string_view dtype = name_of(component.dtype);
    rests += component.columns.empty() ? 1 : 0;
    require(rests <= 1, "[csv] only one component may take the remaining columns");
    require(is_read(component.dtype),
            "[csv] {} cannot be read from text; f32, f64, i32, i64, bool and u8 (text) can", dtype);
    require(component.dtype != DType::U8 || component.columns.size() == 1,
            "[csv] a text component (u8) must have one column, not {}",
            component.columns.empty() ? "all remaining" : std::to_string(component.columns.size()));
    if (!component.missing || component.dtype == DType::U8) continue;
    std::byte value[8];
    require(parse_value(*component.missing, component.dtype, value) == CsvParsed::Good,
            "[csv] .missing = {} is not a valid {}", shown(*component.missing), dtype);
  }
}

CsvOptions checked(CsvOptions options) {
  check(options);
  return options;
}

}  // namespace

CsvReader::CsvReader(const std::filesystem::path& file, CsvOptions options)
    : CsvReader(open_file(file), std::move(options)) {}

CsvReader::CsvReader(std::unique_ptr<RandomAccess> file, CsvOptions options)
    : options_(checked(std::move(options))),
      rows_(std::move(file), {.delimiter = options_.delimiter,
                              .quotes = options_.quotes,
                              .longest = options_.longest_row,
                              .buffer = options_.buffer}) {
  name_columns();
  bind();
}

void CsvReader::name_columns() {
  const std::string begin = options_.header ? "" : rows_.save();
  const std::optional<CsvRow> first = rows_.next();
  if (!first && options_.header) fail<DataError>("{}: is empty and has no header", name());
  if (!first && options_.names.empty()) {
    fail<DataError>("{}: is empty, so its columns are unknown; set .names", name());
  }
  if (first) {
    names_ = fields(*first);
    for (std::size_t i = 0; !options_.header && i < names_.size(); ++i) {
      names_[i] = std::to_string(i);
    }
  }
  if (!options_.names.empty()) {
    if (first && options_.names.size() != names_.size()) {
      fail<DataError>("{}: line {}: {} fields, but .names lists {}", name(), first->line,
                      names_.size(), options_.names.size());
    }
    names_ = options_.names;
  }
  if (!options_.header) rows_.restore(begin);
}

std::size_t CsvReader::index_of(const std::string& column) const {
  const auto found = std::ranges::find(names_, column);
  if (found == names_.end()) {
    std::string all;
    for (const std::string& each : names_) all += (all.empty() ? "'" : ", '") + each + "'";
    fail<DataError>("{}: there is no column '{}'; the columns are {}", name(), column, all);
  }
  if (std::find(found + 1, names_.end(), column) != names_.end()) {
    fail<DataError>("{}: there are two columns '{}'; set .names", name(), column);
  }
  return static_cast<std::size_t>(found - names_.begin());
}

// Determines where each column of the file goes.
void CsvReader::bind() {
  targets_.resize(names_.size());
  std::vector<std::size_t> sizes;
  for (std::size_t i = 0; i < components(); ++i) {
    const std::vector<std::string>& columns = options_.components[i].columns;
    for (std::size_t element = 0; element < columns.size(); ++element) {
      Target& target = targets_[index_of(columns[element])];
      require(!target.component.has_value(), "[csv] the column '{}' is requested twice",
              columns[element]);
      target = {i, element};
    }
    sizes.push_back(columns.size());
  }
  for (std::size_t i = 0; i < components(); ++i) {
    if (!options_.components[i].columns.empty()) continue;
    for (Target& target : targets_) {
      if (!target.component) target = {i, sizes[i]++};
    }
    if (sizes[i] == 0) fail<DataError>("{}: no column is left for component {}", name(), i);
  }
  for (std::size_t i = 0; i < components(); ++i) {
    offsets_.push_back(row_bytes_);
    if (dtype(i) == DType::U8) {
      shapes_.push_back(std::nullopt);
      has_text_ = true;
      continue;
    }
    const bool scalar = options_.components[i].columns.size() == 1;
    shapes_.push_back(scalar ? Shape{} : Shape{static_cast<std::int64_t>(sizes[i])});
    const std::size_t bytes = sizes[i] * size_of(dtype(i));
    row_bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
}

std::string CsvReader::place(const CsvRow& row, std::size_t column) const {
  return fmt::format("{}: line {}, column {} ('{}')", name(), row.line, column + 1,
                     names_.size() > column ? names_[column] : "");
}

// The text of the quoted field at `at`; moves `at` to its end.
std::string_view CsvReader::unquote(const CsvRow& row, std::size_t column, std::size_t& at) {
  const std::size_t begin = at + 1;
  bool doubled = false;
  std::size_t end = row.text.find('"', begin);
  for (; end != std::string_view::npos && row.text.substr(end + 1).starts_with('"');
       end = row.text.find('"', end + 2)) {
    doubled = true;
  }
  if (end == std::string_view::npos) {
    fail<DataError>("{}: the quote is never closed", place(row, column));
  }
  at = end + 1;
  if (at < row.text.size() && row.text[at] != options_.delimiter) {
    const std::size_t next = std::min(row.text.find(options_.delimiter, at), row.text.size());
    fail<DataError>("{}: {} follows the closing quote; a delimiter was expected",
                    place(row, column), shown(row.text.substr(at, next - at)));
  }
  const std::string_view text = row.text.substr(begin, end - begin);
  if (!doubled) return text;
  unquoted_.clear();
  for (std::size_t i = 0; i < text.size(); i += text[i] == '"' ? 2 : 1) unquoted_ += text[i];
  return unquoted_;
}

std::vector<std::string> CsvReader::fields(const CsvRow& row) {
  std::vector<std::string> list;
  std::size_t at = 0;
  for (;;) {
    if (row.quoted && row.text.substr(at).starts_with('"')) {
      list.emplace_back(unquote(row, list.size(), at));
    } else {
      const std::size_t end = std::min(row.text.find(options_.delimiter, at), row.text.size());
      list.emplace_back(row.text.substr(at, end - at));
      at = end;
    }
    if (at == row.text.size()) return list;
    ++at;
  }
}

void CsvReader::parse(const CsvRow& row, const Destination& to) {
  const char* const begin = row.text.data();
  const char* const end = begin + row.text.size();
  const std::size_t columns = targets_.size();
  const char* at = begin;
  std::size_t column = 0;
  for (;; ++column, ++at) {
    if (column == columns) break;
    const Target& target = targets_[column];
    if (target.component) {
      const DType type = dtype(*target.component);
      std::byte* const number = to.numbers[*target.component] + target.element * size_of(type);
      if (const char* stop = parse_leading(at, end, options_.delimiter, type, number)) {
        at = stop;
        if (at == end) break;
        continue;
      }
    }
    if (row.quoted && at < end && *at == '"') {
      auto offset = static_cast<std::size_t>(at - begin);
      const std::string_view field = unquote(row, column, offset);
      at = begin + offset;
      store(row, column, field, true, to);
    } else {
      const auto left = static_cast<std::size_t>(end - at);
      const void* found = left > 0 ? std::memchr(at, options_.delimiter, left) : nullptr;
      const char* const stop = found != nullptr ? static_cast<const char*>(found) : end;
      store(row, column, {at, static_cast<std::size_t>(stop - at)}, false, to);
      at = stop;
    }
    if (at == end) break;
  }
  if (column + 1 != columns || at != end) {
    fail<DataError>("{}: line {}: {} fields, but {} were expected", name(), row.line,
                    fields(row).size(), columns);
  }
}

// Stores a field that is not a plain number.
void CsvReader::store(const CsvRow& row, std::size_t column, std::string_view field, bool quoted,
                      const Destination& to) const {
  if (!quoted && row.quoted && field.find('"') != std::string_view::npos) {
    fail<DataError>("{}: {} contains a quote but is not quoted", place(row, column), shown(field));
  }
  if (!targets_[column].component) return;
  const std::size_t i = *targets_[column].component;
  const CsvComponent& component = options_.components[i];
  const bool missing =
      !quoted && std::ranges::find(options_.missing_values, field) != options_.missing_values.end();
  if (missing && component.missing) field = *component.missing;
  if (component.dtype == DType::U8) {
    to.texts[i] = text_tensor(field);
    return;
  }
  if (missing && !component.missing) {
    fail<DataError>("{}: the field is missing ({}); set .missing to the value to use instead",
                    place(row, column), shown(field));
  }
  std::byte* const number = to.numbers[i] + targets_[column].element * size_of(component.dtype);
  switch (parse_value(field, component.dtype, number)) {
    case CsvParsed::Good:
      return;
    case CsvParsed::NotANumber:
      fail<DataError>("{}: {} is not a valid {}", place(row, column), shown(field),
                      name_of(component.dtype));
    case CsvParsed::OutOfRange:
      fail<DataError>("{}: {} is out of the range of {}", place(row, column), shown(field),
                      name_of(component.dtype));
  }
}

std::optional<std::vector<Tensor>> CsvReader::next() {
  const std::optional<CsvRow> row = rows_.next();
  if (!row) return std::nullopt;
  ++record_;
  const std::shared_ptr<Buffer> buffer = host().allocate(row_bytes_);
  std::vector<Tensor> tensors(components());
  std::vector<std::byte*> places;
  for (std::size_t i = 0; i < components(); ++i) {
    places.push_back(buffer->data() + offsets_[i]);
    if (shapes_[i]) tensors[i] = Tensor(dtype(i), *shapes_[i], buffer, offsets_[i]);
  }
  parse(*row, {.numbers = places, .texts = tensors});
  return tensors;
}

bool CsvReader::next_into(std::span<std::byte* const> to) {
  require(!has_text_ && to.size() == components(),
          "[csv] {} destinations for {} components, none of which may be text", to.size(),
          components());
  const std::optional<CsvRow> row = rows_.next();
  if (!row) return false;
  ++record_;
  parse(*row, {.numbers = to, .texts = {}});
  return true;
}

std::int64_t CsvReader::skip(std::int64_t count) {
  std::int64_t passed = 0;
  for (; passed < count && rows_.next(); ++passed) ++record_;
  return passed;
}

std::string CsvReader::save() const {
  PositionWriter state;
  state.word(static_cast<std::uint64_t>(record_));
  state.text(rows_.save());
  return state.bytes();
}

void CsvReader::restore(std::string_view bytes) {
  PositionReader state(bytes);
  const auto record = static_cast<std::int64_t>(state.word());
  const std::string_view rows = state.text();
  state.expect_end();
  rows_.restore(rows);
  record_ = record;
}

}  // namespace lockstep
