// The wire format of tf.train.Example (example.proto), read in place: where each feature's list is,
// and the values of a list. Nothing is copied before its tensor exists.
#pragma once

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace lockstep::example_wire {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

enum class Kind { None = 0, Bytes = 1, Floats = 2, Integers = 3 };  // the numbers of the fields

// One feature on the wire: the bytes of its list.
struct Found {
  bool present = false;
  Kind kind = Kind::None;
  std::string_view list;
};

enum class Wire { Good, Unusual, Damaged };

// The fields of one message.
class Message {
 public:
  explicit Message(std::string_view bytes)
      : bytes_(bytes),
        in_(reinterpret_cast<const std::uint8_t*>(bytes.data()), static_cast<int>(bytes.size())) {}

  // The tag of the next field; 0 at the end, or for damage, if good() is false.
  std::uint32_t tag() {
    if (!good_ || in_.CurrentPosition() == static_cast<int>(bytes_.size())) return 0;
    const std::uint32_t tag = in_.ReadTag();
    good_ = WireFormatLite::GetTagFieldNumber(tag) != 0;
    return good_ ? tag : 0;
  }

  std::string_view delimited() {
    std::uint32_t size = 0;
    const bool read = in_.ReadVarint32(&size);
    const auto at = static_cast<std::size_t>(in_.CurrentPosition());
    good_ = good_ && read && size <= bytes_.size() - at && in_.Skip(static_cast<int>(size));
    return good_ ? bytes_.substr(at, size) : std::string_view();
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    good_ = good_ && in_.ReadVarint64(&value);
    return value;
  }
  float fixed() {
    std::uint32_t bits = 0;
    good_ = good_ && in_.ReadLittleEndian32(&bits);
    return std::bit_cast<float>(bits);
  }
  void pass_over(std::uint32_t tag) {
    good_ = good_ && WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_END_GROUP &&
            WireFormatLite::SkipField(&in_, tag);
  }
  bool good() const { return good_; }

 private:
  std::string_view bytes_;
  CodedInputStream in_;
  bool good_ = true;
};

constexpr std::uint32_t delimited_tag(int field) {
  return WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
}

// Finds the list of a Feature.
Wire find_list(std::string_view feature, Found& found);

// Calls visit(name, bytes of the feature) for each entry of the map in an Example.
template <class Visit>
Wire walk(std::string_view example, Visit visit) {
  if (example.size() > std::numeric_limits<int>::max()) return Wire::Damaged;
  Message message(example);
  std::string_view features;
  int count = 0;
  while (const std::uint32_t tag = message.tag()) {
    if (tag == delimited_tag(1)) {
      features = message.delimited();
      ++count;
    } else {
      message.pass_over(tag);
    }
  }
  if (!message.good()) return Wire::Damaged;
  if (count > 1) return Wire::Unusual;
  Message entries(features);
  while (const std::uint32_t tag = entries.tag()) {
    if (tag != delimited_tag(1)) {
      entries.pass_over(tag);
      continue;
    }
    Message entry(entries.delimited());
    std::string_view name, value;
    int values = 0;
    while (const std::uint32_t part = entry.tag()) {
      if (part == delimited_tag(1)) {
        name = entry.delimited();
      } else if (part == delimited_tag(2)) {
        value = entry.delimited();
        ++values;
      } else {
        entry.pass_over(part);
      }
    }
    if (!entry.good() || !entries.good()) return Wire::Damaged;
    if (values > 1) return Wire::Unusual;
    const Wire wire = visit(name, value);
    if (wire != Wire::Good) return wire;
  }
  return entries.good() ? Wire::Good : Wire::Damaged;
}

// Calls packed(bytes) for each packed run in a list of numbers, and single(message) for each single
// value of the given wire type; false for damage.
template <class Packed, class Single>
bool walk_numbers(std::string_view list, WireFormatLite::WireType type, Packed packed,
                  Single single) {
  Message message(list);
  while (const std::uint32_t tag = message.tag()) {
    if (tag == delimited_tag(1)) {
      const std::string_view run = message.delimited();
      if (message.good() && !packed(run)) return false;
    } else if (tag == WireFormatLite::MakeTag(1, type)) {
      single(message);
    } else {
      message.pass_over(tag);
    }
  }
  return message.good();
}

// How many floats a list has; nullopt for damage. Call before copy_floats().
std::optional<std::size_t> count_floats(std::string_view list);
void copy_floats(std::string_view list, float* to);

// How many integers a list has, or an upper bound if it is damaged.
std::size_t count_integers(std::string_view list);
// Reads a varint; null if it is damaged.
const char* read_varint(const char* at, const char* end, std::uint64_t& value);

// Calls take(value) for each value of a list of integers; false for damage.
template <class Take>
bool for_each_integer(std::string_view list, Take take) {
  return walk_numbers(
      list, WireFormatLite::WIRETYPE_VARINT,
      [&](std::string_view run) {
        const char* const end = run.data() + run.size();
        std::uint64_t value = 0;
        for (const char* at = run.data(); at != end;) {
          at = read_varint(at, end, value);
          if (at == nullptr) return false;
          take(static_cast<std::int64_t>(value));
        }
        return true;
      },
      [&](Message& message) {
        const std::uint64_t value = message.varint();
        if (message.good()) take(static_cast<std::int64_t>(value));
      });
}

// Calls take(value) for each byte string of a list; false for damage.
template <class Take>
bool for_each_string(std::string_view list, Take take) {
  Message message(list);
  while (const std::uint32_t tag = message.tag()) {
    if (tag == delimited_tag(1)) {
      const std::string_view value = message.delimited();
      if (message.good()) take(value);
    } else {
      message.pass_over(tag);
    }
  }
  return message.good();
}

}  // namespace lockstep::example_wire
