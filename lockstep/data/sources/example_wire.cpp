#include "lockstep/data/sources/example_wire.h"

#include <algorithm>
#include <cstring>

namespace lockstep::example_wire {

Wire find_list(std::string_view feature, Found& found) {
  found = {};
  Message message(feature);
  int lists = 0;
  while (const std::uint32_t tag = message.tag()) {
    if (tag == delimited_tag(1) || tag == delimited_tag(2) || tag == delimited_tag(3)) {
      found.kind = static_cast<Kind>(WireFormatLite::GetTagFieldNumber(tag));
      found.list = message.delimited();
      ++lists;
    } else {
      message.pass_over(tag);
    }
  }
  if (!message.good()) return Wire::Damaged;
  found.present = lists > 0;  // a feature without a list counts as missing
  return lists > 1 ? Wire::Unusual : Wire::Good;
}

std::optional<std::size_t> count_floats(std::string_view list) {
  std::size_t count = 0;
  const bool good = walk_numbers(
      list, WireFormatLite::WIRETYPE_FIXED32,
      [&](std::string_view run) {
        count += run.size() / sizeof(float);
        return run.size() % sizeof(float) == 0;
      },
      [&](Message& message) {
        message.fixed();
        ++count;
      });
  return good ? std::optional(count) : std::nullopt;
}

void copy_floats(std::string_view list, float* to) {
  walk_numbers(
      list, WireFormatLite::WIRETYPE_FIXED32,
      [&](std::string_view run) {
        if (std::endian::native == std::endian::little && !run.empty()) {
          std::memcpy(to, run.data(), run.size());
          to += run.size() / sizeof(float);
        } else {
          Message values(run);
          for (std::size_t i = 0; i < run.size() / sizeof(float); ++i) *to++ = values.fixed();
        }
        return true;
      },
      [&](Message& message) { *to++ = message.fixed(); });
}

// A varint ends with a byte whose highest bit is clear.
std::size_t count_integers(std::string_view list) {
  std::size_t count = 0;
  walk_numbers(
      list, WireFormatLite::WIRETYPE_VARINT,
      [&](std::string_view run) {
        count += static_cast<std::size_t>(std::ranges::count_if(
            run, [](char byte) { return static_cast<signed char>(byte) >= 0; }));
        return true;
      },
      [&](Message& message) {
        message.varint();
        ++count;
      });
  return count;
}

const char* read_varint(const char* at, const char* end, std::uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 70 && at < end; shift += 7) {
    const auto byte = static_cast<unsigned char>(*at++);
    value |= std::uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return at;
  }
  return nullptr;
}

}  // namespace lockstep::example_wire
