// The header of a safetensors file, shared by the reader, the writer and files of slices.
//
// A file written here has checksums in its metadata, which other programs ignore:
//
//   crc32c           of the file's first bytes up to the tensors, with these eight digits as zeros;
//                    it is the first entry of the metadata, and the metadata the first of the
//                    header
//   crc32c/<tensor>  of each tensor's bytes
//   checksums        "crc32c", the last entry: it shows that the file has checksums even if a bit
//                    of the first entry's name has changed
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep::safetensors {

inline constexpr std::size_t kLengthBytes = 8;
inline constexpr std::uint64_t kMaxHeaderBytes =
    100'000'000;  // the limit of the format's other readers

// What the header says about a tensor.
struct Entry {
  std::string name;
  DType dtype = DType::F32;
  Shape shape;
  std::uint64_t begin = 0;  // from the end of the header
  std::uint64_t end = 0;
  std::optional<std::uint32_t> checksum;
};

struct Header {
  std::vector<Entry> entries;                   // sorted by offset
  std::map<std::string, std::string> metadata;  // without checksums
  std::uint64_t data_begin = 0;
};

// The size of the length field and the header together, from a file's first eight bytes. DataError,
// naming the file, if it cannot be right.
std::uint64_t header_size(std::span<const std::byte> first, std::uint64_t file_bytes,
                          const std::string& file);
// Parses the file's bytes up to the tensors. DataError, naming the file, if they are not valid.
Header parse_header(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                    const std::string& file);
// DataError, naming file and tensor, if these are not the bytes that were written.
void check_tensor(const Entry& entry, std::span<const std::byte> bytes, const std::string& file);

// The length and the header of a file that holds these tensors, padded so that they begin at a
// multiple of eight. The entries' offsets and checksums must be set.
std::string header_bytes(const std::vector<Entry>& entries,
                         const std::map<std::string, std::string>& metadata,
                         const std::string& file);

std::uint32_t checksum_of(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace lockstep::safetensors
