#include "lockstep/data/position.h"

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

void append_word(std::string& bytes, std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    bytes.push_back(static_cast<char>(value >> shift & 0xFF));
  }
}

void append_element(std::string& bytes, const Element& element) {
  append_word(bytes, element.sample.epoch);
  append_word(bytes, element.sample.number);
  append_word(bytes, element.size());
  for (const Tensor& component : element) {
    append_word(bytes, static_cast<std::uint64_t>(component.dtype()));
    append_word(bytes, component.shape().rank());
    for (const std::int64_t extent : component.shape().dims()) {
      append_word(bytes, static_cast<std::uint64_t>(extent));
    }
    bytes.append(reinterpret_cast<const char*>(component.raw()), component.bytes());
  }
}

constexpr std::uint64_t kMostDTypes = static_cast<std::uint64_t>(DType::Bool) + 1;
constexpr std::int64_t kMostAxes = 32;
constexpr std::int64_t kMostComponents = 1 << 16;

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

void PositionWriter::append_to(std::string& bytes) const {
  for (const Part& part : parts_) {
    bytes += part.bytes;
    if (part.nested == nullptr) {
      append_element(bytes, part.element);
      continue;
    }
    const std::string inner = part.nested->bytes();
    append_word(bytes, inner.size());
    bytes += inner;
  }
  bytes += tail_;
}

std::string PositionWriter::bytes() const {
  std::string bytes;
  append_to(bytes);
  return bytes;
}

std::string_view PositionReader::take(std::uint64_t bytes) {
  require(bytes <= rest_.size(), "[data] the saved position is damaged: {} bytes of {} are left",
          rest_.size(), bytes);
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
          "[data] the saved position is damaged: it counts {} of {} elements", value, limit);
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
  const std::int64_t components = count(kMostComponents);
  for (std::int64_t i = 0; i < components; ++i) {
    const auto dtype = static_cast<DType>(count(kMostDTypes - 1));
    std::vector<std::int64_t> dims;
    const std::int64_t rank = count(kMostAxes);
    std::uint64_t elements = 1;
    for (std::int64_t axis = 0; axis < rank; ++axis) {
      dims.push_back(count(std::int64_t{1} << 40));
      require(!__builtin_mul_overflow(elements, static_cast<std::uint64_t>(dims.back()), &elements),
              "[data] the saved position is damaged: a tensor in it is too big to be");
    }
    require(elements <= rest_.size(),
            "[data] the saved position is damaged: a tensor of {} elements in {} bytes", elements,
            rest_.size());
    const std::string_view bytes = take(elements * size_of(dtype));
    Tensor tensor(dtype, Shape(std::move(dims)));
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
