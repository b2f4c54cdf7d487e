// RandomAccess: bytes that can be read from any offset, of a file or in memory. Streams read from
// one; it holds no position, so that several can.
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
  // Reads from an offset on; fewer bytes than asked for at the end alone. DataError, naming the
  // file, the offset and the cause, where they cannot be read.
  virtual std::size_t read(std::uint64_t offset, std::span<char> to) const = 0;
};

// A regular file, kept open. DataError, naming it and the cause, where it cannot be opened.
std::unique_ptr<RandomAccess> open_file(const std::filesystem::path& file);
// Bytes that outlive what is returned.
std::unique_ptr<RandomAccess> view_bytes(std::string_view bytes, std::string name);

}  // namespace lockstep
