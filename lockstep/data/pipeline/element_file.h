// Element files: the elements of a data set on disk, one record each. Caches and snapshots consist
// of them.
//
//   magic      16 bytes, "lockstep elems 1"
//   head       u64 length, u32 checksum, then that many bytes of text: what the file holds
//   records    u64 number, u64 length, u32 checksum of these 16 bytes, u32 checksum of the element;
//              then the element: epoch, number, number of components; for each component its dtype,
//              rank and extents; then the values of each component, aligned to 64 bytes from the
//              beginning of the element
//   index      the offset of each record, u64
//   tail       u64 offset of the index, u64 number of records, u32 checksum of the 16 bytes, magic
//
// All integers are little-endian; checksums are CRC-32C, masked except those of elements. The index
// finds a record by its number directly. A record is read into one buffer, in which its tensors are
// aligned.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/element.h"
#include "lockstep/data/pipeline/buffer_pool.h"
#include "lockstep/data/sources/random_access.h"

namespace lockstep {

// Writes to a descriptor that the caller owns; `path` is for messages. Every call throws DataError
// if it cannot write, for example because the disk is full.
class ElementFileWriter {
 public:
  ElementFileWriter(int descriptor, std::filesystem::path path, std::string_view head);

  void append(const Element& element);
  // The last call: writes the index and the tail.
  void finish();

  std::int64_t count() const { return static_cast<std::int64_t>(offsets_.size()); }
  std::uint64_t bytes() const { return written_ + pending_.size(); }

 private:
  void put(std::string_view bytes);
  void flush();
  void write_out(std::string_view bytes);

  int descriptor_;
  std::filesystem::path path_;
  std::string pending_;
  std::uint64_t written_ = 0;
  std::vector<std::uint64_t> offsets_;
};

// A finished file. DataError, naming the file and the record, if it is damaged.
class ElementFile {
 public:
  explicit ElementFile(const std::filesystem::path& path) : ElementFile(open_file(path)) {}
  explicit ElementFile(std::unique_ptr<RandomAccess> bytes);

  const std::string& head() const { return head_; }
  std::int64_t count() const { return count_; }
  const std::string& name() const { return bytes_->name(); }

  // Any number of readers may read a file, each used by one thread at a time.
  class Reader {
   public:
    explicit Reader(std::shared_ptr<const ElementFile> file)
        : file_(std::move(file)), name_(std::make_shared<std::string>(file_->name())) {}

    // The element with this number, below count(). Reading in order is fastest.
    Element read(std::int64_t number);

   private:
    // Bytes [offset, offset + length) of the file, valid until the window moves.
    std::string_view bytes(std::uint64_t offset, std::uint64_t length, std::int64_t record);
    std::uint64_t offset_of(std::int64_t number);

    std::shared_ptr<const ElementFile> file_;
    std::shared_ptr<const std::string> name_;  // shared with elements, which do not keep the file
    std::string window_;
    std::uint64_t window_offset_ = 0;
    std::int64_t next_ = -1;  // the record at next_offset_
    std::uint64_t next_offset_ = 0;
    BufferPool pool_;
  };

 private:
  std::unique_ptr<RandomAccess> bytes_;
  std::string head_;
  std::int64_t count_ = 0;
  std::uint64_t records_offset_ = 0;
  std::uint64_t index_offset_ = 0;
};

}  // namespace lockstep
