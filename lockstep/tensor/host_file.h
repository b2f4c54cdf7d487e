// Reads files into host memory, and writes them so that they appear whole or not at all.
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
// file and the cause, if it cannot be read.
std::shared_ptr<Buffer> read_file(const std::filesystem::path& file);

// Reads parts of a regular file. Every call may throw DataError, naming the file and the cause.
class FileReader {
 public:
  explicit FileReader(const std::filesystem::path& file);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  std::uint64_t size() const { return size_; }
  // Fills `bytes` from this offset on. Any number of threads may read at once.
  void read(std::uint64_t offset, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path file_;
  int descriptor_;
  std::uint64_t size_ = 0;
};

// Writes the pieces one after the other to a temporary file in the same folder, syncs it, renames
// it and syncs the folder: the file appears whole or not at all, and an older one stays until then.
// DataError, naming the file and the cause, if that fails; no temporary file is left. Temporary
// files of processes that were killed while they wrote this file are removed first.
void write_file(const std::filesystem::path& file,
                std::span<const std::span<const std::byte>> pieces);

// Removes temporary files of this file whose writers no longer exist.
void remove_stale_temporaries(const std::filesystem::path& file);

// Renames a complete file in its folder, replacing the one that has this name, and syncs the
// folder. DataError, naming the file and the cause, if that fails.
void rename_file(const std::filesystem::path& from, const std::filesystem::path& to);
// Gives a complete file in the same folder a second name, in the same way. Where the file system
// has no links, it becomes a copy.
void link_file(const std::filesystem::path& file, const std::filesystem::path& name);

// write_file piece by piece: the file appears on commit(); without it, nothing is left. Every call
// may throw DataError, naming the file and the cause.
class FileWriter {
 public:
  explicit FileWriter(const std::filesystem::path& file);
  ~FileWriter();
  FileWriter(FileWriter&&) noexcept;
  FileWriter& operator=(FileWriter&&) noexcept;

  const std::filesystem::path& file() const { return file_; }
  void append(std::span<const std::byte> bytes);
  // Must be the last call.
  void commit();

 private:
  void flush();

  std::filesystem::path file_;
  std::unique_ptr<class TemporaryFile> temporary_;
  std::vector<std::byte> buffered_;
};

}  // namespace lockstep
