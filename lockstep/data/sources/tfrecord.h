// TFRecord files: one record after the other, each with its length (u64), the masked CRC-32C of the
// length (u32), its bytes, and their masked CRC-32C (u32), little-endian; the file may be
// compressed with gzip. TensorBoard's event files have the same format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/data/sources/byte_stream.h"
#include "lockstep/tensor/host_file.h"

namespace lockstep {

struct TFRecordOptions {
  bool check_data = true;  // verify checksums of records; those of lengths are always verified
  std::size_t buffer = 256 << 10;
};

// Reads the records of a file in order. Used by one thread at a time.
class TFRecordReader {
 public:
  explicit TFRecordReader(const std::filesystem::path& file, TFRecordOptions options = {});
  explicit TFRecordReader(std::unique_ptr<RandomAccess> file, TFRecordOptions options = {});

  const std::string& name() const { return stream_.name(); }
  // The number of the next record, from 0.
  std::int64_t record() const { return record_; }

  // The next record, valid until the next call; nullopt at the end. DataError, naming the file, the
  // record and its byte, if it is damaged or cannot be read. If only its data is damaged, the
  // reader continues with the next record; otherwise the next one cannot be found, and the reader
  // is at its end.
  std::optional<std::string_view> next();
  // Skips up to `count` records; returns how many. Reads only their lengths.
  std::int64_t skip(std::int64_t count);

  // If restore() throws, the reader keeps its position.
  std::string save() const;
  void restore(std::string_view state);

 private:
  std::optional<std::uint64_t> next_length();
  std::string_view peek(std::size_t count);
  std::string place(std::uint64_t begin) const;
  [[noreturn]] void end(const std::string& why);
  [[noreturn]] void end_cut_short(std::uint64_t begin, std::uint64_t length, std::uint64_t left);

  TFRecordOptions options_;
  ByteStream stream_;
  std::int64_t record_ = 0;
  bool ended_ = false;  // by damage
};

// Appends a record with its length and checksums.
void append_tfrecord(std::string& to, std::string_view record);

struct TFRecordWriterOptions {
  Compression compression = Compression::Auto;  // Auto: gzip if the name ends in .gz
  int level = 6;                                // of compression, from 1 to 9
};

// Writes a file of records, which appears when it is closed; if it is not closed, nothing is left.
// Every call throws DataError, naming the file and the cause, if it cannot write.
class TFRecordWriter {
 public:
  explicit TFRecordWriter(const std::filesystem::path& file, TFRecordWriterOptions options = {});
  ~TFRecordWriter();
  TFRecordWriter(TFRecordWriter&&) noexcept;
  TFRecordWriter& operator=(TFRecordWriter&&) noexcept;

  void write(std::string_view record);
  std::int64_t records() const { return records_; }
  // The last call.
  void close();

 private:
  class Deflater;

  void flush();

  FileWriter file_;
  std::unique_ptr<Deflater> deflater_;
  std::string pending_;
  std::int64_t records_ = 0;
};

}  // namespace lockstep
