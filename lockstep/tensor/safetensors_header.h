// The header of a safetensors file: what its reader, its writer and files of slices share.
//
// A file written here carries checksums in its metadata, where other programs pass over them:
//
//   crc32c           of the file's first bytes up to the tensors, with these eight digits as zeros;
//                    it is the first entry of the metadata, and the metadata the first of the
//                    header
//   crc32c/<tensor>  of each tensor's bytes
//   checksums        "crc32c", the last entry: a file in which one bit of the first name has
//   changed
//                    is known by it to have had checksums
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
    100'000'000;  // as the format's other readers have it

// Where the header says that a tensor lies.
struct Entry {
  std::string name;
  DType dtype = DType::F32;
  Shape shape;
  std::uint64_t begin = 0;  // from the end of the header
  std::uint64_t end = 0;
  std::optional<std::uint32_t> checksum;
};

struct Header {
  std::vector<Entry> entries;                   // by place
  std::map<std::string, std::string> metadata;  // without checksums
  std::uint64_t data_begin = 0;
};

// How many bytes the length and the header have, from a file's first eight bytes. DataError, naming
// the file, where that cannot be.
std::uint64_t header_size(std::span<const std::byte> first, std::uint64_t file_bytes,
                          const std::string& file);
// From the file's bytes up to the tensors. DataError, naming the file, for what is not valid.
Header parse_header(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                    const std::string& file);
// DataError, naming file and tensor, where these are not the bytes that were written.
void check_tensor(const Entry& entry, std::span<const std::byte> bytes, const std::string& file);

// The length and the header of a file that holds these, padded so that the tensors begin at a
// multiple of eight. The entries' places and checksums must be set.
std::string header_bytes(const std::vector<Entry>& entries,
                         const std::map<std::string, std::string>& metadata,
                         const std::string& file);

std::uint32_t checksum_of(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace lockstep::safetensors
