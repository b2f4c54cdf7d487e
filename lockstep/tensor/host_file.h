// Files in and out of the host's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/device/device.h"

namespace lockstep {

// The bytes of a regular file, read at once into memory of exactly its size. DataError, naming the
// file and the cause, where it cannot be read.
std::shared_ptr<Buffer> read_file(const std::filesystem::path& file);

// A regular file of which parts are read. DataError, naming the file and the cause, from every
// call.
class FileReader {
 public:
  explicit FileReader(const std::filesystem::path& file);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  std::uint64_t size() const { return size_; }
  // Fills `bytes` from this place in the file on. Any number of threads may read at once.
  void read(std::uint64_t offset, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path file_;
  int descriptor_;
  std::uint64_t size_ = 0;
};

// Writes the pieces one after the other to a temporary name beside the file, syncs, renames, syncs
// the folder: the file appears whole or not at all, and an older one stays until then. DataError,
// naming the file and the cause, where that fails; no temporary file is left. Those that processes
// left which were killed while they wrote this file are removed first.
void write_file(const std::filesystem::path& file,
                std::span<const std::span<const std::byte>> pieces);

// Removes the temporary files of writers of this file that are no more.
void remove_stale_temporaries(const std::filesystem::path& file);

// The same piece by piece: the file appears when it is committed, and where it is not, nothing is
// left. DataError, naming the file and the cause, from every call.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& file);
  ~FileWriter();
  FileWriter(FileWriter&&) noexcept;
  FileWriter& operator=(FileWriter&&) noexcept;

  const std::filesystem::path& file() const { return file_; }
  void append(std::span<const std::byte> bytes);
  // The last call.
  void commit();

 private:
  void flush();

  std::filesystem::path file_;
  std::unique_ptr<class TemporaryFile> temporary_;
  std::vector<std::byte> buffered_;
};

}  // namespace lockstep
