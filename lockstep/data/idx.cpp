#include "lockstep/data/idx.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/gzip.h"
#include "lockstep/tensor/host_file.h"

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

// An unsigned number of the width of T from big-endian bytes.
template <class T>
T big_endian(const std::byte* from) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value << 8 | std::to_integer<T>(from[i]));
  }
  return value;
}

ElementType element_type(std::byte code, const std::string& name) {
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
      fail<DataError>("{}: its elements are signed bytes, which are not read; write u8 or i32",
                      name);
  }
  fail<DataError>("{}: not an IDX file: there is no element type {:#04x}", name,
                  std::to_integer<unsigned>(code));
}

// Decodes elements stored as Stored, an unsigned integer, into Values of that or a greater width.
template <class Value, class Stored>
void decode(const std::byte* from, Tensor& to) {
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

// The tensor in the first `size` bytes of a buffer; bytes are not copied but shared.
Tensor parse(const std::shared_ptr<Buffer>& buffer, std::size_t size, const std::string& name) {
  const std::byte* bytes = buffer->data();
  if (size < kMagicBytes) {
    fail<DataError>("{}: not an IDX file: it has {} bytes, fewer than {}", name, size, kMagicBytes);
  }
  if (bytes[0] != std::byte{0} || bytes[1] != std::byte{0}) {
    fail<DataError>("{}: not an IDX file: it begins with {:#010x} instead of 0x0000", name,
                    big_endian<std::uint32_t>(bytes));
  }
  const ElementType type = element_type(bytes[2], name);
  const auto rank = std::to_integer<std::size_t>(bytes[3]);
  if (rank == 0) fail<DataError>("{}: not an IDX file: it has no axes", name);
  const std::size_t header = kMagicBytes + rank * kExtentBytes;
  if (size < header) {
    fail<DataError>("{}: the header for {} axes has {} bytes, the file {}", name, rank, header,
                    size);
  }
  std::vector<std::int64_t> dims;
  for (std::size_t axis = 0; axis < rank; ++axis) {
    dims.push_back(big_endian<std::uint32_t>(bytes + kMagicBytes + axis * kExtentBytes));
  }
  Shape shape;
  try {
    shape = Shape(std::move(dims));
  } catch (const UsageError& error) {
    fail<DataError>("{}: {}", name, error.what());
  }
  const std::uint64_t expected = static_cast<std::uint64_t>(shape.elements()) * type.file_bytes;
  if (size - header != expected) {
    fail<DataError>("{}: its shape {} needs {} bytes after the header, but {} follow", name, shape,
                    expected, size - header);
  }
  if (type.dtype == DType::U8) return Tensor(DType::U8, shape, buffer, header);
  Tensor tensor(type.dtype, shape);
  if (type.dtype == DType::F32) decode<float, std::uint32_t>(bytes + header, tensor);
  if (type.dtype == DType::F64) decode<double, std::uint64_t>(bytes + header, tensor);
  if (type.dtype == DType::I32 && type.file_bytes == 4) {
    decode<std::int32_t, std::uint32_t>(bytes + header, tensor);
  }
  if (type.dtype == DType::I32 && type.file_bytes == 2) {
    decode<std::int32_t, std::uint16_t>(bytes + header, tensor);
  }
  return tensor;
}

Tensor parse_maybe_zipped(const std::shared_ptr<Buffer>& buffer, const std::string& name) {
  const std::span<const std::byte> bytes(buffer->data(), buffer->bytes());
  if (!is_gzip(bytes)) return parse(buffer, buffer->bytes(), name);
  const Unzipped unzipped = unzip(bytes, name);
  return parse(unzipped.buffer, unzipped.size, name);
}

}  // namespace

Tensor load_idx(const std::filesystem::path& file) {
  return parse_maybe_zipped(read_file(file), file.string());
}

Tensor parse_idx(std::span<const std::byte> bytes, const std::string& name) {
  const std::shared_ptr<Buffer> buffer = host().allocate(bytes.size());
  if (!bytes.empty()) std::memcpy(buffer->data(), bytes.data(), bytes.size());
  return parse_maybe_zipped(buffer, name);
}

}  // namespace lockstep
