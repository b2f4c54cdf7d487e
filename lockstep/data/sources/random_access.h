// RandomAccess: bytes of a file or in memory that can be read from any offset. It has no position,
// so several streams can read from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace lockstep {

class RandomAccess {
 public:
  virtual ~RandomAccess() = default;

  virtual const std::string& name() const = 0;  // for messages
  virtual std::uint64_t size() const = 0;       // when it was opened
  // Reads from an offset on; fewer bytes than requested only at the end. DataError, naming the
  // file, the offset and the cause, if they cannot be read.
  virtual std::size_t read(std::uint64_t offset, std::span<char> to) const = 0;
};

// A regular file, kept open. DataError, naming it and the cause, if it cannot be opened.
std::unique_ptr<RandomAccess> open_file(const std::filesystem::path& file);
// Bytes in memory, which must outlive the result.
std::unique_ptr<RandomAccess> view_bytes(std::string_view bytes, std::string name);

}  // namespace lockstep
