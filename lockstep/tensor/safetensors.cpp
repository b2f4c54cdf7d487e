// The format has no padding between tensors and allows none: the tensors' bytes, in the order of
// their offsets, fill the rest of the file exactly. Tensors are therefore written widest dtype
// first, after a header padded to a multiple of eight, which aligns every one of them in the file
// and in the buffer that a reader fills from it.
#include "lockstep/tensor/safetensors.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "lockstep/tensor/host_file.h"

namespace lockstep {
namespace {

using nlohmann::json;

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // as the format's other readers have it
constexpr std::size_t kMaxRank = 64;
constexpr std::string_view kMetadata = "__metadata__";

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

// Where the header says that a tensor lies.
struct Entry {
  std::string name;
  DType dtype = DType::F32;
  Shape shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

class Reader {
 public:
  Reader(std::shared_ptr<Buffer> buffer, std::string name)
      : buffer_(std::move(buffer)), name_(std::move(name)) {}

  TensorFile read() {
    const json header = parse_header();
    TensorFile file;
    std::vector<Entry> entries;
    for (const auto& [key, value] : header.items()) {
      if (key == kMetadata) {
        file.metadata = metadata(value);
      } else {
        entries.push_back(entry(key, value));
      }
    }
    check_places(entries);
    for (const Entry& entry : entries) file.tensors.emplace(entry.name, tensor(entry));
    return file;
  }

 private:
  template <class... Args>
  [[noreturn]] void reject(fmt::format_string<Args...> format, Args&&... args) const {
    fail<DataError>("{}: not a valid safetensors file: {}", name_,
                    fmt::format(format, std::forward<Args>(args)...));
  }

  json parse_header() {
    const std::size_t size = buffer_->bytes();
    if (size < kLengthBytes) {
      reject("{} bytes are too few for the {} of the header's length", size, kLengthBytes);
    }
    std::uint64_t length = 0;
    for (std::size_t i = kLengthBytes; i-- > 0;) {
      length = length << 8 | std::to_integer<std::uint64_t>(buffer_->data()[i]);
    }
    if (length > kMaxHeaderBytes) {
      reject("its header would have {} bytes, more than the {} allowed", length, kMaxHeaderBytes);
    }
    if (length > size - kLengthBytes) {
      reject("its header would have {} bytes, but only {} follow", length, size - kLengthBytes);
    }
    data_begin_ = kLengthBytes + static_cast<std::size_t>(length);
    const auto* text = reinterpret_cast<const char*>(buffer_->data()) + kLengthBytes;
    if (length == 0 || text[0] != '{') reject("its header does not begin with '{{'");
    // JSON allows a key twice and parsers keep either; here it would hide a tensor.
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
      return json::parse(text, text + length, no_key_twice);
    } catch (const json::exception& error) {
      reject("its header is no JSON: {}", error.what());
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

  const json& field(const std::string& tensor, const json& value, const char* key) const {
    const auto found = value.find(key);
    if (found == value.end()) reject("tensor \"{}\" has no \"{}\"", tensor, key);
    return *found;
  }

  std::uint64_t number(const std::string& tensor, const json& value, const char* what) const {
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
      reject("tensor \"{}\" has {} that is no number of 63 bits: {}", tensor, what, value.dump());
    }
    return value.get<std::uint64_t>();
  }

  Entry entry(const std::string& name, const json& value) const {
    if (!value.is_object()) reject("tensor \"{}\" is not an object", name);
    if (value.size() > 3) reject("tensor \"{}\" has more than dtype, shape, data_offsets", name);
    Entry entry;
    entry.name = name;
    const json& dtype = field(name, value, "dtype");
    if (!dtype.is_string()) reject("tensor \"{}\" has a dtype that is no string", name);
    const auto known = std::ranges::find(kDTypeNames, dtype.get<std::string>(), &DTypeName::name);
    if (known == std::end(kDTypeNames)) {
      reject("tensor \"{}\" has the dtype \"{}\", which Lockstep does not have", name,
             dtype.get<std::string>());
    }
    entry.dtype = known->dtype;
    entry.shape = shape(name, field(name, value, "shape"));
    const json& offsets = field(name, value, "data_offsets");
    if (!offsets.is_array() || offsets.size() != 2) {
      reject("tensor \"{}\" has data_offsets that are no pair", name);
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
    if (!value.is_array()) reject("tensor \"{}\" has a shape that is no array", tensor);
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

  // Sorts by place; the tensors must fill the bytes after the header without hole or overlap.
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
    const std::uint64_t available = buffer_->bytes() - data_begin_;
    if (place != available) {
      reject("its tensors have {} bytes, but {} follow the header", place, available);
    }
  }

  Tensor tensor(const Entry& entry) const {
    const std::size_t offset = data_begin_ + static_cast<std::size_t>(entry.begin);
    if (entry.dtype == DType::Bool) {
      for (std::uint64_t i = 0; i < entry.end - entry.begin; ++i) {
        const auto value = std::to_integer<unsigned>(buffer_->data()[offset + i]);
        if (value > 1) reject("tensor \"{}\" has a BOOL that is {}", entry.name, value);
      }
    }
    if (offset % size_of(entry.dtype) == 0) {
      return Tensor(entry.dtype, entry.shape, buffer_, offset);
    }
    Tensor aligned(entry.dtype, entry.shape);
    if (aligned.bytes() > 0) {
      std::memcpy(aligned.raw(), buffer_->data() + offset, aligned.bytes());
    }
    return aligned;
  }

  std::shared_ptr<Buffer> buffer_;
  std::string name_;
  std::size_t data_begin_ = 0;
};

using NamedTensor = std::pair<const std::string, Tensor>;

// The length and the JSON, padded with spaces so that the tensors begin at a multiple of eight.
std::string header_bytes(const std::filesystem::path& file, const TensorFile& contents,
                         const std::vector<const NamedTensor*>& ordered) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!contents.metadata.empty()) header[std::string(kMetadata)] = contents.metadata;
  std::uint64_t place = 0;
  for (const NamedTensor* entry : ordered) {
    const auto& [name, tensor] = *entry;
    const std::uint64_t end = place + tensor.bytes();
    const auto dims = tensor.shape().dims();
    header[name] = {{"dtype", file_name_of(tensor.dtype())},
                    {"shape", std::vector<std::int64_t>(dims.begin(), dims.end())},
                    {"data_offsets", {place, end}}};
    place = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) {
    fail<UsageError>("[safetensors] {}: a name or a metadata entry is not UTF-8: {}", file.string(),
                     error.what());
  }
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  require(text.size() <= kMaxHeaderBytes,
          "[safetensors] {}: the header would have {} bytes, more than the {} allowed",
          file.string(), text.size(), kMaxHeaderBytes);
  std::string length;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    length.push_back(static_cast<char>(text.size() >> (8 * i) & 0xFF));
  }
  return length + text;
}

}  // namespace

void save_safetensors(const std::filesystem::path& file, const TensorFile& contents) {
  std::vector<const NamedTensor*> ordered;
  for (const NamedTensor& entry : contents.tensors) {
    require(entry.second.defined(), "[safetensors] {}: there is no tensor under the name \"{}\"",
            file.string(), entry.first);
    require(entry.first != kMetadata, "[safetensors] {}: no tensor may be called \"{}\"; rename it",
            file.string(), kMetadata);
    ordered.push_back(&entry);
  }
  std::ranges::stable_sort(ordered, std::greater{},
                           [](const NamedTensor* entry) { return size_of(entry->second.dtype()); });
  const std::string header = header_bytes(file, contents, ordered);
  std::vector<std::span<const std::byte>> pieces{std::as_bytes(std::span(header))};
  for (const NamedTensor* entry : ordered) {
    pieces.emplace_back(entry->second.raw(), entry->second.bytes());
  }
  write_file(file, pieces);
}

TensorFile load_safetensors(const std::filesystem::path& file) {
  return Reader(read_file(file), file.string()).read();
}

TensorFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name) {
  std::shared_ptr<Buffer> buffer = host().allocate(bytes.size());
  if (!bytes.empty()) std::memcpy(buffer->data(), bytes.data(), bytes.size());
  return Reader(std::move(buffer), name).read();
}

}  // namespace lockstep
