#include "lockstep/cli/fingerprint.h"

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string_view>

#include "lockstep/base/crc32c.h"
#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kReadWhole = std::int64_t{512} << 20;
constexpr std::int64_t kSampledFiles = 1024;
constexpr std::int64_t kBlock = std::int64_t{64} << 10;

// Continues the checksum `before` with `size` bytes of a file.
std::uint32_t checksum(std::ifstream& stream, const fs::path& file, std::int64_t begin,
                       std::int64_t size, std::uint32_t before) {
  std::string block(static_cast<std::size_t>(std::min(size, kBlock)), '\0');
  stream.seekg(begin);
  for (std::int64_t left = size; left > 0;) {
    const std::int64_t count = std::min(left, kBlock);
    if (!stream.read(block.data(), count)) fail<DataError>("{}: cannot be read", file.string());
    before = crc32c(std::string_view(block).substr(0, static_cast<std::size_t>(count)), before);
    left -= count;
  }
  return before;
}

std::uint32_t checksum(const fs::path& file, std::int64_t size, bool whole) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) fail<DataError>("{}: cannot be read", file.string());
  if (whole || size <= 3 * kBlock) return checksum(stream, file, 0, size, 0);
  std::uint32_t sum = 0;
  for (const std::int64_t begin : {std::int64_t{0}, (size - kBlock) / 2, size - kBlock}) {
    sum = checksum(stream, file, begin, kBlock, sum);
  }
  return sum;
}

// FNV-1a (Fowler, Noll, Vo), 64 bits.
class Fnv {
 public:
  void add(std::string_view text) {
    for (const char c : text) {
      hash_ = (hash_ ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    }
  }
  std::uint64_t value() const { return hash_; }

 private:
  std::uint64_t hash_ = 0xcbf29ce484222325U;
};

std::int64_t size_of(const fs::path& file) {
  std::error_code error;
  const auto size = fs::file_size(file, error);
  if (error) fail<DataError>("{}: {}", file.string(), error.message());
  return static_cast<std::int64_t>(size);
}

}  // namespace

Fingerprint fingerprint(const fs::path& root, std::vector<fs::path> files) {
  std::ranges::sort(files);
  files.erase(std::unique(files.begin(), files.end()), files.end());
  Fingerprint result;
  result.files = std::ssize(files);
  std::vector<std::int64_t> sizes;
  sizes.reserve(files.size());
  for (const fs::path& file : files) {
    sizes.push_back(size_of(file));
    result.bytes += sizes.back();
  }
  const bool whole = result.bytes <= kReadWhole;
  std::set<std::int64_t> sampled;
  const std::int64_t samples = std::min(kSampledFiles, result.files);
  for (std::int64_t i = 0; i < samples; ++i) sampled.insert(i * result.files / samples);

  Fnv hash;
  for (std::int64_t i = 0; i < result.files; ++i) {
    const fs::path& file = files[static_cast<std::size_t>(i)];
    const std::int64_t size = sizes[static_cast<std::size_t>(i)];
    hash.add(file.lexically_relative(root).generic_string());
    hash.add(fmt::format("\n{}\n", size));
    if (whole || sampled.contains(i)) hash.add(fmt::format("{}\n", checksum(file, size, whole)));
  }
  result.text = fmt::format("{:016x}", hash.value());
  result.covers = whole ? "names and contents of all files"
                        : fmt::format("names and sizes of all files, contents of {}", samples);
  return result;
}

}  // namespace lockstep::cli
