// ByteStream: the bytes of a file in order, inflated if the file is compressed with gzip (detected
// by its first two bytes), through a buffer in which formats are parsed without a copy.
//
// A position in the stream can be saved and restored exactly. For a plain file that is an offset;
// for a compressed one a checkpoint of the decoder, at most 32 KiB, and how many bytes to inflate
// from there: about the buffer and two deflate blocks, wherever in the file the position is.
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

// Used by one thread at a time. Every call throws DataError, naming the file, the byte and the
// cause, if the file cannot be read or inflated; the bytes before the damage can be read.
class ByteStream {
 public:
  explicit ByteStream(const std::filesystem::path& file, ByteStreamOptions options = {});
  explicit ByteStream(std::unique_ptr<RandomAccess> file, ByteStreamOptions options = {});

  const std::string& name() const { return file_->name(); }
  bool compressed() const { return decoder_ != nullptr; }
  // The position of the next byte, counted in inflated bytes.
  std::uint64_t tell() const { return next_ - (end_ - begin_); }
  // How many bytes may follow: exact for a plain file, an upper bound for a compressed one. A
  // record that claims to be longer is damaged.
  std::uint64_t most_left() const;

  // The next bytes, at least `count`, fewer only at the end. They stay valid until the next call
  // that reads.
  std::string_view peek(std::size_t count);
  // Skips bytes that peek() returned.
  void consume(std::size_t count);
  bool at_end() { return peek(1).empty(); }

  // Fills `to`; returns fewer bytes only at the end. Large reads bypass the buffer.
  std::size_t read(std::span<char> to);
  // Skips up to `count` bytes; returns how many. Reads nothing in a plain file.
  std::uint64_t skip(std::uint64_t count);
  // The next line without its end (LF or CR LF, which the last line may lack); nullopt at the end.
  // DataError for a line of more than `longest` bytes. The line stays valid until the next call
  // that reads.
  std::optional<std::string_view> line(std::size_t longest);

  // Goes to a position, forwards or backwards; DataError beyond the end. Compressed files are
  // inflated from the last known checkpoint before it, at worst from the beginning; to return to an
  // earlier position, save() and restore() are faster.
  void seek(std::uint64_t position);

  // If restore() throws, the stream keeps its position: UsageError for bytes that are not a saved
  // position, DataError if the file has changed.
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
  std::size_t begin_ = 0;  // of the bytes that are buffered and not consumed
  std::size_t end_ = 0;
  std::size_t ahead_ = 0;   // how much to read at once: little after a seek, then more
  std::uint64_t next_ = 0;  // position of the byte after the buffered ones
};

}  // namespace lockstep
