#include "lockstep/data/sources/idx.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/sources/byte_stream.h"

namespace lockstep {
namespace {

constexpr std::size_t kMagicBytes = 4;
constexpr std::size_t kExtentBytes = 4;

// The type codes of the format.
enum class Code : std::uint8_t { U8 = 8, I8 = 9, I16 = 11, I32 = 12, F32 = 13, F64 = 14 };

struct ElementType {
  DType dtype;
  std::size_t file_bytes;  // of one element
};

// Reads a big-endian unsigned integer.
template <class T>
T big_endian(const char* from) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value << 8 | static_cast<unsigned char>(from[i]));
  }
  return value;
}

ElementType element_type(char code, const std::string& name) {
  switch (static_cast<Code>(code)) {
    case Code::U8:
      return {DType::U8, 1};
    case Code::I16:
      return {DType::I32, 2};
    case Code::I32:
      return {DType::I32, 4};
    case Code::F32:
      return {DType::F32, 4};
    case Code::F64:
      return {DType::F64, 8};
    case Code::I8:
      fail<DataError>("{}: its elements are signed bytes, which are not supported; use u8 or i32",
                      name);
  }
  fail<DataError>("{}: not an IDX file: there is no element type {:#04x}", name,
                  static_cast<unsigned char>(code));
}

// Decodes elements stored as Stored, an unsigned integer, into Values of the same or greater width.
template <class Value, class Stored>
void decode(const char* from, Tensor& to) {
  for (Value& value : to.values<Value>()) {
    const Stored bits = big_endian<Stored>(from);
    if constexpr (sizeof(Value) == sizeof(Stored)) {
      value = std::bit_cast<Value>(bits);
    } else {
      value = static_cast<std::make_signed_t<Stored>>(bits);
    }
    from += sizeof(Stored);
  }
}

// The first `size` bytes; DataError if the file has fewer.
std::string_view read_header(ByteStream& stream, std::size_t size) {
  const std::string_view header = stream.peek(size);
  if (header.size() < size) {
    if (size == kMagicBytes) {
      fail<DataError>("{}: not an IDX file: it has {} bytes, fewer than {}", stream.name(),
                      header.size(), size);
    }
    fail<DataError>("{}: the header for {} axes has {} bytes, the file {}", stream.name(),
                    (size - kMagicBytes) / kExtentBytes, size, header.size());
  }
  return header;
}

Shape read_shape(std::string_view header, const std::string& name) {
  std::vector<std::int64_t> dims;
  for (std::size_t at = kMagicBytes; at < header.size(); at += kExtentBytes) {
    dims.push_back(big_endian<std::uint32_t>(header.data() + at));
  }
  try {
    return Shape(std::move(dims));
  } catch (const UsageError& error) {
    fail<DataError>("{}: {}", name, error.what());
  }
}

// Fills the buffer with the elements; DataError unless exactly as many bytes follow.
void read_elements(ByteStream& stream, const Shape& shape, std::span<char> to) {
  std::uint64_t found = stream.read(to);
  if (found == to.size()) found += stream.skip(std::numeric_limits<std::uint64_t>::max());
  if (found != to.size()) {
    fail<DataError>("{}: its shape {} needs {} bytes after the header, but {} follow",
                    stream.name(), shape, to.size(), found);
  }
}

// Bytes are read directly into the tensor; wider elements are decoded from a copy.
Tensor parse(ByteStream& stream) {
  const std::string_view magic = read_header(stream, kMagicBytes);
  if (!magic.starts_with(std::string_view("\0\0", 2))) {
    fail<DataError>("{}: not an IDX file: it begins with {:#010x} instead of 0x0000", stream.name(),
                    big_endian<std::uint32_t>(magic.data()));
  }
  const ElementType type = element_type(magic[2], stream.name());
  const std::size_t rank = static_cast<unsigned char>(magic[3]);
  if (rank == 0) fail<DataError>("{}: not an IDX file: it has no axes", stream.name());
  const std::size_t header = kMagicBytes + rank * kExtentBytes;
  const Shape shape = read_shape(read_header(stream, header).substr(0, header), stream.name());
  stream.consume(header);
  const std::uint64_t bytes = static_cast<std::uint64_t>(shape.elements()) * type.file_bytes;
  if (bytes > stream.most_left()) {  // before that much memory is allocated
    const std::uint64_t found = stream.skip(std::numeric_limits<std::uint64_t>::max());
    fail<DataError>("{}: its shape {} needs {} bytes after the header, but {} follow",
                    stream.name(), shape, bytes, found);
  }
  Tensor tensor(type.dtype, shape);
  if (type.dtype == DType::U8) {
    read_elements(stream, shape, {reinterpret_cast<char*>(tensor.raw()), tensor.bytes()});
    return tensor;
  }
  std::string stored(static_cast<std::size_t>(bytes), '\0');
  read_elements(stream, shape, stored);
  const char* from = stored.data();
  if (type.dtype == DType::F32) decode<float, std::uint32_t>(from, tensor);
  if (type.dtype == DType::F64) decode<double, std::uint64_t>(from, tensor);
  if (type.dtype == DType::I32 && type.file_bytes == 4) {
    decode<std::int32_t, std::uint32_t>(from, tensor);
  }
  if (type.dtype == DType::I32 && type.file_bytes == 2) {
    decode<std::int32_t, std::uint16_t>(from, tensor);
  }
  return tensor;
}

}  // namespace

Tensor load_idx(const std::filesystem::path& file) {
  ByteStream stream(file);
  return parse(stream);
}

Tensor parse_idx(std::span<const std::byte> bytes, const std::string& name) {
  ByteStream stream(view_bytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, name));
  return parse(stream);
}

}  // namespace lockstep
