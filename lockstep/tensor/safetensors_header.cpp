#include "lockstep/tensor/safetensors_header.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"
#include "lockstep/base/json_depth.h"

namespace lockstep::safetensors {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxRank = 64;
constexpr std::string_view kMetadata = "__metadata__";
constexpr std::string_view kHeaderKey = "crc32c";
constexpr std::string_view kTensorPrefix = "crc32c/";
constexpr std::string_view kLastKey = "checksums";
constexpr std::string_view kBeginning = R"({"__metadata__":{"crc32c":")";
constexpr std::string_view kNoChecksum = "00000000";

struct DTypeName {
  DType dtype;
  std::string_view name;
};
constexpr DTypeName kDTypeNames[] = {
    {DType::F32, "F32"}, {DType::F64, "F64"}, {DType::F16, "F16"}, {DType::BF16, "BF16"},
    {DType::I32, "I32"}, {DType::I64, "I64"}, {DType::U8, "U8"},   {DType::Bool, "BOOL"},
};

std::string_view file_name_of(DType dtype) {
  return std::ranges::find(kDTypeNames, dtype, &DTypeName::dtype)->name;
}

std::optional<std::uint32_t> digits(std::string_view text) {
  std::uint32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value, 16);
  const bool lower = std::ranges::none_of(text, [](char c) { return c >= 'A' && c <= 'F'; });
  if (text.size() != 8 || error != std::errc() || stop != end || !lower) return std::nullopt;
  return value;
}

// The checksum of the length and the header, with zeros for the eight digits at `place`.
std::uint32_t header_checksum(std::string_view bytes, std::size_t place) {
  std::uint32_t sum = crc32c(bytes.substr(0, place));
  sum = crc32c(kNoChecksum, sum);
  return crc32c(bytes.substr(place + kNoChecksum.size()), sum);
}

class Parser {
 public:
  Parser(std::string_view bytes, std::uint64_t file_bytes, const std::string& file)
      : bytes_(bytes), file_bytes_(file_bytes), file_(file) {}

  Header parse() {
    const bool signed_header = check_header();
    Header result;
    result.data_begin = bytes_.size();
    const json header = parse_json();
    for (const auto& [key, value] : header.items()) {
      if (key == kMetadata) {
        result.metadata = metadata(value);
      } else {
        result.entries.push_back(entry(key, value));
      }
    }
    check_places(result.entries);
    take_checksums(result, signed_header);
    return result;
  }

 private:
  template <class... Args>
  [[noreturn]] void reject(fmt::format_string<Args...> format, Args&&... args) const {
    fail<DataError>("{}: not a valid safetensors file: {}", file_,
                    fmt::format(format, std::forward<Args>(args)...));
  }

  // Whether the header has a checksum; DataError if it does not match.
  bool check_header() const {
    if (!bytes_.substr(kLengthBytes).starts_with(kBeginning)) return false;
    const std::size_t place = kLengthBytes + kBeginning.size();
    const std::string_view written = bytes_.substr(place, kNoChecksum.size());
    const std::optional<std::uint32_t> expected = digits(written);
    if (!expected) {
      fail<DataError>("{}: its header is damaged: '{}' is not a checksum", file_, written);
    }
    const std::uint32_t found = header_checksum(bytes_, place);
    if (found != *expected) {
      fail<DataError>("{}: its header is damaged: its checksum is {:08x}, but {:08x} was written",
                      file_, found, *expected);
    }
    return true;
  }

  json parse_json() const {
    const std::string_view text = bytes_.substr(kLengthBytes);
    if (text.empty() || text[0] != '{') reject("its header does not begin with '{{'");
    if (nests_too_deep(text)) reject("its header nests deeper than {} brackets", kMaxJsonDepth);
    // JSON allows duplicate keys, and parsers keep either one; here that would hide a tensor.
    std::vector<std::set<std::string>> keys;
    const auto no_key_twice = [&](int, json::parse_event_t event, json& value) {
      if (event == json::parse_event_t::object_start) keys.emplace_back();
      if (event == json::parse_event_t::object_end) keys.pop_back();
      if (event == json::parse_event_t::key && !keys.back().insert(value).second) {
        reject("its header has \"{}\" twice", value.get<std::string>());
      }
      return true;
    };
    try {
      return json::parse(text, no_key_twice);
    } catch (const json::exception& error) {
      reject("its header is not JSON: {}", error.what());
    }
  }

  std::map<std::string, std::string> metadata(const json& value) const {
    if (!value.is_object()) reject("{} is not an object", kMetadata);
    std::map<std::string, std::string> result;
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) reject("{} \"{}\" is not a string", kMetadata, key);
      result.emplace(key, text.get<std::string>());
    }
    return result;
  }

  // Moves the checksums from the metadata to the entries.
  void take_checksums(Header& header, bool signed_header) const {
    auto& metadata = header.metadata;
    const auto is_checksum = [](std::string_view key) {
      return key == kHeaderKey || key == kLastKey || key.starts_with(kTensorPrefix);
    };
    const bool any =
        std::ranges::any_of(metadata, [&](const auto& item) { return is_checksum(item.first); });
    if (!any) return;
    if (!signed_header || !metadata.contains(std::string(kLastKey))) {
      fail<DataError>(
          "{}: its header is damaged, or another program wrote it and kept the checksums in its "
          "metadata: load an undamaged copy, or remove them",
          file_);
    }
    for (Entry& entry : header.entries) {
      const auto found = metadata.find(std::string(kTensorPrefix) + entry.name);
      if (found != metadata.end()) entry.checksum = digits(found->second);
      if (!entry.checksum) reject("tensor \"{}\" has no checksum, but others have one", entry.name);
    }
    std::erase_if(metadata, [&](const auto& item) { return is_checksum(item.first); });
  }

  const json& field(const std::string& tensor, const json& value, const char* key) const {
    const auto found = value.find(key);
    if (found == value.end()) reject("tensor \"{}\" has no \"{}\"", tensor, key);
    return *found;
  }

  std::uint64_t number(const std::string& tensor, const json& value, const char* what) const {
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
      reject("tensor \"{}\" has {} that is not a 63-bit number: {}", tensor, what, value.dump());
    }
    return value.get<std::uint64_t>();
  }

  Entry entry(const std::string& name, const json& value) const {
    if (!value.is_object()) reject("tensor \"{}\" is not an object", name);
    if (value.size() > 3) reject("tensor \"{}\" has more than dtype, shape, data_offsets", name);
    Entry entry;
    entry.name = name;
    const json& dtype = field(name, value, "dtype");
    if (!dtype.is_string()) reject("tensor \"{}\" has a dtype that is not a string", name);
    const auto known = std::ranges::find(kDTypeNames, dtype.get<std::string>(), &DTypeName::name);
    if (known == std::end(kDTypeNames)) {
      reject("tensor \"{}\" has the dtype \"{}\", which Lockstep does not have", name,
             dtype.get<std::string>());
    }
    entry.dtype = known->dtype;
    entry.shape = shape(name, field(name, value, "shape"));
    const json& offsets = field(name, value, "data_offsets");
    if (!offsets.is_array() || offsets.size() != 2) {
      reject("tensor \"{}\" has data_offsets that are not a pair", name);
    }
    entry.begin = number(name, offsets[0], "an offset");
    entry.end = number(name, offsets[1], "an offset");
    const std::uint64_t expected =
        static_cast<std::uint64_t>(entry.shape.elements()) * size_of(entry.dtype);
    if (entry.begin > entry.end || entry.end - entry.begin != expected) {
      reject("tensor \"{}\", {} {}, needs {} bytes but has the offsets {} to {}", name, known->name,
             entry.shape, expected, entry.begin, entry.end);
    }
    return entry;
  }

  Shape shape(const std::string& tensor, const json& value) const {
    if (!value.is_array()) reject("tensor \"{}\" has a shape that is not an array", tensor);
    if (value.size() > kMaxRank) {
      reject("tensor \"{}\" has {} axes, more than {}", tensor, value.size(), kMaxRank);
    }
    std::vector<std::int64_t> dims;
    for (const json& extent : value) {
      dims.push_back(static_cast<std::int64_t>(number(tensor, extent, "an extent")));
    }
    try {
      return Shape(std::move(dims));
    } catch (const UsageError& error) {
      reject("tensor \"{}\": {}", tensor, error.what());
    }
  }

  // Sorts by offset; the tensors must fill the bytes after the header without gaps or overlap.
  void check_places(std::vector<Entry>& entries) const {
    std::ranges::sort(entries, [](const Entry& a, const Entry& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    std::uint64_t place = 0;
    for (const Entry& entry : entries) {
      if (entry.begin != place) {
        reject("tensor \"{}\" begins at {}, but the tensors before it end at {}", entry.name,
               entry.begin, place);
      }
      place = entry.end;
    }
    const std::uint64_t available = file_bytes_ - bytes_.size();
    if (place != available) {
      reject("its tensors have {} bytes, but {} follow the header", place, available);
    }
  }

  std::string_view bytes_;
  std::uint64_t file_bytes_;
  const std::string& file_;
};

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::uint64_t header_size(std::span<const std::byte> first, std::uint64_t file_bytes,
                          const std::string& file) {
  const auto reject = [&]<class... Args>(fmt::format_string<Args...> format, Args&&... args) {
    fail<DataError>("{}: not a valid safetensors file: {}", file,
                    fmt::format(format, std::forward<Args>(args)...));
  };
  if (file_bytes < kLengthBytes) {
    reject("{} bytes are too few for the {} of the header's length", file_bytes, kLengthBytes);
  }
  std::uint64_t length = 0;
  for (std::size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | std::to_integer<std::uint64_t>(first[i]);
  }
  if (length > kMaxHeaderBytes) {
    reject("its header would have {} bytes, more than the {} allowed", length, kMaxHeaderBytes);
  }
  if (length > file_bytes - kLengthBytes) {
    reject("its header would have {} bytes, but only {} follow", length, file_bytes - kLengthBytes);
  }
  return kLengthBytes + length;
}

Header parse_header(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                    const std::string& file) {
  return Parser(text_of(bytes), file_bytes, file).parse();
}

void check_tensor(const Entry& entry, std::span<const std::byte> bytes, const std::string& file) {
  if (entry.checksum) {
    const std::uint32_t found = checksum_of(bytes);
    if (found != *entry.checksum) {
      fail<DataError>(
          "{}: tensor \"{}\" is damaged: its checksum is {:08x}, but {:08x} was written", file,
          entry.name, found, *entry.checksum);
    }
  }
  if (entry.dtype != DType::Bool) return;
  for (const std::byte byte : bytes) {
    if (std::to_integer<unsigned>(byte) > 1) {
      fail<DataError>("{}: not a valid safetensors file: tensor \"{}\" has a BOOL that is {}", file,
                      entry.name, std::to_integer<unsigned>(byte));
    }
  }
}

std::string header_bytes(const std::vector<Entry>& entries,
                         const std::map<std::string, std::string>& metadata,
                         const std::string& file) {
  nlohmann::ordered_json texts;
  texts[std::string(kHeaderKey)] = kNoChecksum;
  for (const auto& [key, text] : metadata) {
    require(
        key != kHeaderKey && key != kLastKey && !key.starts_with(kTensorPrefix),
        "[safetensors] {}: the metadata may not contain \"{}\", which is the name of a checksum",
        file, key);
    texts[key] = text;
  }
  for (const Entry& entry : entries) {
    require(entry.name != kMetadata, "[safetensors] {}: no tensor may be called \"{}\"; rename it",
            file, kMetadata);
    texts[std::string(kTensorPrefix) + entry.name] = fmt::format("{:08x}", entry.checksum.value());
  }
  texts[std::string(kLastKey)] = kHeaderKey;
  nlohmann::ordered_json header;
  header[std::string(kMetadata)] = std::move(texts);
  for (const Entry& entry : entries) {
    const auto dims = entry.shape.dims();
    header[entry.name] = {{"dtype", file_name_of(entry.dtype)},
                          {"shape", std::vector<std::int64_t>(dims.begin(), dims.end())},
                          {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) {
    fail<UsageError>("[safetensors] {}: a name or a metadata entry is not UTF-8: {}", file,
                     error.what());
  }
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  require(text.size() <= kMaxHeaderBytes,
          "[safetensors] {}: the header would have {} bytes, more than the {} allowed", file,
          text.size(), kMaxHeaderBytes);
  std::string bytes;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    bytes.push_back(static_cast<char>(text.size() >> (8 * i) & 0xFF));
  }
  bytes += text;
  const std::size_t place = kLengthBytes + kBeginning.size();
  bytes.replace(place, kNoChecksum.size(), fmt::format("{:08x}", header_checksum(bytes, place)));
  return bytes;
}

std::uint32_t checksum_of(std::span<const std::byte> bytes, std::uint32_t before) {
  return crc32c(text_of(bytes), before);
}

}  // namespace lockstep::safetensors
