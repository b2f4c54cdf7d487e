// Text files, one line at a time; plain or compressed with gzip.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/data/sources/byte_stream.h"

namespace lockstep {

struct TextOptions {
  std::size_t longest_line = std::size_t{64} << 20;  // bytes; a longer one is a DataError
  std::size_t buffer = 256 << 10;
};

// Used by one thread at a time. A UTF-8 byte-order mark at the beginning is skipped.
class LineReader {
 public:
  explicit LineReader(const std::filesystem::path& file, TextOptions options = {});
  explicit LineReader(std::unique_ptr<RandomAccess> file, TextOptions options = {});

  const std::string& name() const { return stream_.name(); }
  // The number of the next line, from 0.
  std::int64_t record() const { return line_; }

  // The next line without its end (LF or CR LF), valid until the next call; nullopt at the end.
  // DataError, naming the file, the line and the cause, if it cannot be read; the reader is then at
  // its end.
  std::optional<std::string_view> next();
  // Skips up to `count` lines; returns how many.
  std::int64_t skip(std::int64_t count);

  // If restore() throws, the reader keeps its position.
  std::string save() const;
  void restore(std::string_view state);

 private:
  TextOptions options_;
  ByteStream stream_;
  std::int64_t line_ = 0;
  bool ended_ = false;  // by damage
};

// Skips a byte-order mark at the beginning of a stream.
void skip_byte_order_mark(ByteStream& stream);

}  // namespace lockstep
