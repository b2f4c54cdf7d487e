// ByteStream: the bytes of a file in their order, inflated where the file is compressed with gzip
// (told by its first two bytes), through a buffer in which formats are parsed without a copy.
//
// A place in the stream can be saved and gone back to exactly. Of a plain file that is an offset;
// of a compressed one a checkpoint of the decoder, at most 32 KiB, and how many bytes to inflate
// from there: the buffer and two deflate blocks or so, wherever in the file the place is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/data/sources/gzip.h"
#include "lockstep/data/sources/random_access.h"

namespace lockstep {

enum class Compression { Auto, None, Gzip };

struct ByteStreamOptions {
  std::size_t buffer = 256 << 10;
  Compression compression = Compression::Auto;
};

// Used by one thread at a time. Every call is a DataError, naming the file, the byte and the cause,
// where the file cannot be read or inflated; what lies before the damage can be read.
class ByteStream {
 public:
  explicit ByteStream(const std::filesystem::path& file, ByteStreamOptions options = {});
  explicit ByteStream(std::unique_ptr<RandomAccess> file, ByteStreamOptions options = {});

  const std::string& name() const { return file_->name(); }
  bool compressed() const { return decoder_ != nullptr; }
  // The position of the next byte, counted in inflated bytes.
  std::uint64_t tell() const { return next_ - (end_ - begin_); }
  // How many bytes may follow: as many as there are in a plain file, and no fewer in a compressed
  // one. What claims to be longer than this is damaged.
  std::uint64_t most_left() const;

  // The next bytes, `count` of them at least, fewer at the end alone. They stay where they are
  // until the next call that reads.
  std::string_view peek(std::size_t count);
  // Passes over bytes that were peeked at.
  void consume(std::size_t count);
  bool at_end() { return peek(1).empty(); }

  // Reads as many bytes as there are room for; fewer at the end alone. Large reads bypass the
  // buffer.
  std::size_t read(std::span<char> to);
  // Passes over up to `count` bytes; returns over how many. Costs no reading in a plain file.
  std::uint64_t skip(std::uint64_t count);
  // The next line without its end, a line feed or carriage return and line feed, which the last
  // line may lack; nothing at the end. DataError for one of more bytes than `longest`. The line
  // stays where it is until the next call that reads.
  std::optional<std::string_view> line(std::size_t longest);

  // Goes to a position, which may be before this one; DataError behind the end. Compressed files
  // are inflated from the nearest known checkpoint before it, the beginning at worst; restore is
  // for going to places that were left.
  void seek(std::uint64_t position);

  // Restoring leaves the stream where it was where it throws: UsageError for bytes that are no
  // saved place, DataError where the file is not the one of then.
  std::string save() const;
  void restore(std::string_view state);

 private:
  void append(std::size_t least);
  std::size_t read_below(std::span<char> to);
  void go_to(std::unique_ptr<GzipDecoder> decoder, std::uint64_t next);

  std::unique_ptr<RandomAccess> file_;
  std::unique_ptr<GzipDecoder> decoder_;              // of a compressed file
  std::shared_ptr<const GzipCheckpoint> checkpoint_;  // the last one at or before the buffer
  std::unique_ptr<char[]> buffer_;
  std::size_t capacity_ = 0;
  std::size_t begin_ = 0;  // of what is buffered and not consumed
  std::size_t end_ = 0;
  std::size_t ahead_ = 0;   // how much to read at once: little behind a jump, then more
  std::uint64_t next_ = 0;  // position of the byte behind the buffered ones
};

}  // namespace lockstep
