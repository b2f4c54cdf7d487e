#include "lockstep/data/pipeline/position.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

void append_word(std::string& bytes, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    bytes.push_back(static_cast<char>(value >> shift & 0xFF));
  }
}

// A component's dtype is written as its number, plus this if its values are in a row.
constexpr std::uint64_t kPositionDTypes = static_cast<std::uint64_t>(DType::Bool) + 1;
constexpr std::int64_t kPositionAxes = 32;
constexpr std::int64_t kPositionComponents = 1 << 16;
// Added to the number of components if the record and file follow: the number of the file and, the
// first time it occurs, its name.
constexpr std::int64_t kOrigin = 1 << 17;
constexpr std::uint64_t kMostValues = std::uint64_t{1} << 48;
constexpr std::size_t kWordBytes = 8;

}  // namespace

void PositionWriter::word(std::uint64_t value) {
  append_word(tail_, value);
}

void PositionWriter::words(std::span<const std::int64_t> values) {
  word(values.size());
  for (const std::int64_t value : values) word(static_cast<std::uint64_t>(value));
}

void PositionWriter::text(std::string_view value) {
  word(value.size());
  tail_ += value;
}

void PositionWriter::element(const Element& value) {
  parts_.push_back({.bytes = std::move(tail_), .element = value, .nested = nullptr});
  tail_.clear();
}

void PositionWriter::nested(std::shared_ptr<const PositionWriter> other) {
  parts_.push_back({.bytes = std::move(tail_), .element = {}, .nested = std::move(other)});
  tail_.clear();
}

void PositionWriter::append(const Element& element, Sink& sink, FileNumbers& files) {
  append_word(sink.bytes, element.sample.epoch);
  append_word(sink.bytes, element.sample.number);
  const bool from_file = element.sample.file != nullptr;
  append_word(sink.bytes, element.size() + (from_file ? kOrigin : 0));
  if (from_file) {
    const std::string& name = *element.sample.file;
    const auto [file, is_new] = files.try_emplace(name, files.size());
    append_word(sink.bytes, static_cast<std::uint64_t>(element.sample.record));
    append_word(sink.bytes, file->second);
    if (is_new) {
      append_word(sink.bytes, name.size());
      sink.bytes += name;
    }
  }
  for (const Tensor& component : element) {
    const DType dtype = component.dtype();
    const bool in_row = sink.rows != nullptr;
    append_word(sink.bytes, static_cast<std::uint64_t>(dtype) + (in_row ? kPositionDTypes : 0));
    append_word(sink.bytes, component.shape().rank());
    for (const std::int64_t extent : component.shape().dims()) {
      append_word(sink.bytes, static_cast<std::uint64_t>(extent));
    }
    if (!in_row) {
      sink.bytes.append(reinterpret_cast<const char*>(component.raw()), component.bytes());
      continue;
    }
    std::uint64_t& end = sink.ends[dtype];
    append_word(sink.bytes, end);
    end += static_cast<std::uint64_t>(component.elements());
    (*sink.rows)[dtype].push_back(component);
  }
}

void PositionWriter::append_to(Sink& sink) const {
  FileNumbers files;
  for (const Part& part : parts_) {
    sink.bytes += part.bytes;
    if (part.nested == nullptr) {
      append(part.element, sink, files);
      continue;
    }
    const std::size_t before = sink.bytes.size();
    append_word(sink.bytes, 0);
    part.nested->append_to(sink);
    std::string length;
    append_word(length, sink.bytes.size() - before - kWordBytes);
    sink.bytes.replace(before, kWordBytes, length);
  }
  sink.bytes += tail_;
}

std::string PositionWriter::bytes() const {
  Sink sink;
  append_to(sink);
  return std::move(sink.bytes);
}

std::string PositionWriter::bytes_beside(ValueRows& rows) const {
  Sink sink;
  sink.rows = &rows;
  for (const auto& [dtype, tensors] : rows) {
    for (const Tensor& tensor : tensors) {
      sink.ends[dtype] += static_cast<std::uint64_t>(tensor.elements());
    }
  }
  append_to(sink);
  return std::move(sink.bytes);
}

RowReader::RowReader(const ValueRows& rows) {
  for (const auto& [dtype, tensors] : rows) {
    Row& row = rows_[dtype];
    row.tensors = &tensors;
    for (const Tensor& tensor : tensors) {
      row.begins.push_back(row.values);
      row.values += static_cast<std::uint64_t>(tensor.elements());
    }
  }
}

Tensor RowReader::take(DType dtype, Shape shape, std::uint64_t begin) {
  const auto values = static_cast<std::uint64_t>(shape.elements());
  if (values == 0) return Tensor(dtype, std::move(shape));
  Row& row = rows_[dtype];
  require(row.taken + values <= row.values && begin <= row.values - values,
          "[data] the saved position is damaged: it points to values {} to {} of {}", begin,
          begin + values, row.values);
  row.taken += values;
  // The last tensor that begins there or earlier; never one without values.
  const auto after = std::ranges::upper_bound(row.begins, begin);
  const auto at = static_cast<std::size_t>(after - row.begins.begin()) - 1;
  const Tensor& source = (*row.tensors)[at];
  const std::uint64_t offset = begin - row.begins[at];
  require(offset + values <= static_cast<std::uint64_t>(source.elements()),
          "[data] the saved position is damaged: it points to values {} to {}, which do not belong "
          "to one tensor",
          begin, begin + values);
  Tensor tensor(dtype, std::move(shape));
  std::memcpy(tensor.raw(), source.raw() + offset * size_of(dtype), tensor.bytes());
  return tensor;
}

std::string_view PositionReader::take(std::uint64_t bytes) {
  require(bytes <= rest_.size(),
          "[data] the saved position is damaged: it ends after {} of {} bytes", rest_.size(),
          bytes);
  const std::string_view value = rest_.substr(0, static_cast<std::size_t>(bytes));
  rest_.remove_prefix(value.size());
  return value;
}

std::uint64_t PositionReader::word() {
  const std::string_view bytes = take(8);
  std::uint64_t value = 0;
  for (std::size_t i = 8; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

std::int64_t PositionReader::count(std::int64_t limit) {
  const std::uint64_t value = word();
  require(value <= static_cast<std::uint64_t>(limit),
          "[data] the saved position is damaged: it has the number {}, and at most {} is valid",
          value, limit);
  return static_cast<std::int64_t>(value);
}

std::vector<std::int64_t> PositionReader::words() {
  const std::int64_t size = count(static_cast<std::int64_t>(rest_.size() / 8));
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < size; ++i) values.push_back(static_cast<std::int64_t>(word()));
  return values;
}

std::string_view PositionReader::text() {
  return take(word());
}

Element PositionReader::element() {
  Element element;
  element.sample.epoch = word();
  element.sample.number = word();
  std::int64_t components = count(kOrigin + kPositionComponents);
  if (components >= kOrigin) {
    components -= kOrigin;
    element.sample.record = count(std::numeric_limits<std::int64_t>::max());
    const auto file = static_cast<std::size_t>(count(std::ssize(files_)));
    if (file == files_.size()) files_.push_back(std::make_shared<std::string>(text()));
    element.sample.file = files_[file];
  }
  require(components <= kPositionComponents,
          "[data] the saved position is damaged: an element in it has {} components", components);
  for (std::int64_t i = 0; i < components; ++i) {
    const std::int64_t kind = count(2 * kPositionDTypes - 1);
    const bool in_row = kind >= static_cast<std::int64_t>(kPositionDTypes);
    const auto dtype = static_cast<DType>(kind % static_cast<std::int64_t>(kPositionDTypes));
    std::vector<std::int64_t> dims;
    const std::int64_t rank = count(kPositionAxes);
    std::uint64_t elements = 1;
    for (std::int64_t axis = 0; axis < rank; ++axis) {
      dims.push_back(count(std::int64_t{1} << 40));
      require(!__builtin_mul_overflow(elements, static_cast<std::uint64_t>(dims.back()), &elements),
              "[data] the saved position is damaged: the size of a tensor in it overflows");
    }
    if (in_row) {
      require(rows_ != nullptr && elements <= kMostValues,
              "[data] the saved position is damaged: it points to values that do not exist");
      element.push_back(rows_->take(dtype, Shape(std::move(dims)), word()));
      continue;
    }
    require(elements <= rest_.size(),
            "[data] the saved position is damaged: a tensor of {} elements in {} bytes", elements,
            rest_.size());
    const std::string_view bytes = take(elements * size_of(dtype));
    Tensor tensor(dtype, Shape(std::move(dims)));
    require(dtype != DType::Bool || std::ranges::all_of(bytes, [](char c) { return (c | 1) == 1; }),
            "[data] the saved position is damaged: it has a bool that is neither true nor false");
    if (!bytes.empty()) std::memcpy(tensor.raw(), bytes.data(), bytes.size());
    element.push_back(std::move(tensor));
  }
  return element;
}

void PositionReader::expect_end() const {
  require(rest_.empty(), "[data] the saved position is damaged: {} bytes are left over",
          rest_.size());
}

}  // namespace lockstep
