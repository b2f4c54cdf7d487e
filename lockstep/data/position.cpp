#include "lockstep/data/position.h"

#include "lockstep/base/error.h"

namespace lockstep {

void PositionWriter::word(std::uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    bytes_.push_back(static_cast<char>(value >> shift & 0xFF));
  }
}

void PositionWriter::text(std::string_view value) {
  word(value.size());
  bytes_ += value;
}

std::uint64_t PositionReader::word() {
  require(rest_.size() >= 8, "[data] the saved position is damaged: it ends early");
  std::uint64_t value = 0;
  for (std::size_t i = 8; i-- > 0;) value = value << 8 | static_cast<unsigned char>(rest_[i]);
  rest_.remove_prefix(8);
  return value;
}

std::int64_t PositionReader::count(std::int64_t limit) {
  const std::uint64_t value = word();
  require(value <= static_cast<std::uint64_t>(limit),
          "[data] the saved position is damaged: it counts {} of {} elements", value, limit);
  return static_cast<std::int64_t>(value);
}

std::string_view PositionReader::text() {
  const std::uint64_t size = word();
  require(size <= rest_.size(), "[data] the saved position is damaged: {} bytes of {} are left",
          rest_.size(), size);
  const std::string_view value = rest_.substr(0, static_cast<std::size_t>(size));
  rest_.remove_prefix(value.size());
  return value;
}

void PositionReader::expect_end() const {
  require(rest_.empty(), "[data] the saved position is damaged: {} bytes are left over",
          rest_.size());
}

}  // namespace lockstep
