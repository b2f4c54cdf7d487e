// GzipDecoder: inflates a gzip file (RFC 1952, any number of members) from its beginning or from a
// checkpoint.
//
// A deflate stream (RFC 1951) can be entered between two blocks given the 32 KiB of output before
// (the window), the bit in the file at which the next block begins, and the checksum so far, as in
// zlib's example zran. The decoder takes such a checkpoint at the first block boundary after every
// kCheckpointSpacing bytes of output, which costs a copy of the window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/data/sources/random_access.h"

namespace lockstep {

// Whether the bytes begin with the magic number of gzip.
bool is_gzip(std::string_view bytes);

// No deflate stream inflates by more than this factor (258 bytes from two bits).
inline constexpr std::uint64_t kMostInflation = 1032;

struct GzipCheckpoint {
  std::uint64_t position = 0;  // in the inflated data
  std::uint64_t offset = 0;    // in the file, of the next byte
  bool in_member = false;      // otherwise the header of a member comes next, or the end
  // If in a member:
  int bits = 0;              // of the byte before the offset that belong to the next block
  std::uint32_t crc = 0;     // of the member so far
  std::uint32_t length = 0;  // of the member so far, modulo 2^32
  std::string window;        // up to 32 KiB of output before
};

class GzipDecoder {
 public:
  // The file must outlive the decoder.
  explicit GzipDecoder(const RandomAccess& file);
  // UsageError if the checkpoint cannot be one of this file.
  GzipDecoder(const RandomAccess& file, std::shared_ptr<const GzipCheckpoint> from);
  ~GzipDecoder();
  GzipDecoder(const GzipDecoder&) = delete;
  GzipDecoder& operator=(const GzipDecoder&) = delete;

  // Fills `to` unless the end or damage comes earlier; returns 0 only at the end. DataError, naming
  // the file, the offset in it and the cause, if the data is cut short, damaged or followed by
  // something else; all bytes before that are returned first.
  std::size_t read(std::span<char> to);

  std::uint64_t position() const { return position_; }
  // The last checkpoint, at or before the position.
  const std::shared_ptr<const GzipCheckpoint>& checkpoint() const { return checkpoint_; }

 private:
  struct Inflater;

  bool begin_member();
  void inflate_into(std::span<char> to, std::size_t& done);
  void end_member();
  void take_checkpoint();
  bool refill();
  unsigned char next_byte();
  std::uint32_t next_word();
  void skip_text();
  std::uint64_t offset() const { return input_end_ - input_.size(); }
  [[noreturn]] void fail_cut_short() const;

  const RandomAccess& file_;
  std::unique_ptr<Inflater> inflater_;
  std::unique_ptr<char[]> buffer_;
  std::string_view input_;       // the part of the buffer that was not inflated yet
  std::uint64_t input_end_ = 0;  // offset in the file of the end of the buffer
  bool in_member_ = false;
  std::uint32_t crc_ = 0;
  std::uint32_t length_ = 0;
  std::uint32_t header_crc_ = 0;
  std::uint64_t position_ = 0;
  std::shared_ptr<const GzipCheckpoint> checkpoint_;
  std::string failure_;  // to be thrown by the next call, because bytes before it were returned
};

}  // namespace lockstep
