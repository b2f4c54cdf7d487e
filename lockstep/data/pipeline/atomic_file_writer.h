// AtomicFileWriter: writes a file or folder that appears complete or not at all.
//
// Until publish() renames it, the data is in the same folder under the name with ".writing"
// appended. The writer holds a lock on it, so that only one of several processes, or of several
// iterators in a process, writes it. The lock of a process that died is gone, and the next writer
// deletes what it left.
#pragma once

#include <filesystem>
#include <memory>

namespace lockstep {

class AtomicFileWriter {
 public:
  enum class Kind { File, Folder };

  // Null if another writer holds the lock or the file exists by now. DataError, with path and
  // cause, if it cannot be written at all.
  static std::unique_ptr<AtomicFileWriter> make(const std::filesystem::path& path, Kind kind);
  // Deletes the temporary file or folder unless it was published.
  ~AtomicFileWriter();
  AtomicFileWriter(const AtomicFileWriter&) = delete;
  AtomicFileWriter& operator=(const AtomicFileWriter&) = delete;

  // Where to write; an empty file or folder at first.
  const std::filesystem::path& temporary() const { return temporary_; }
  // Of the temporary file, open for writing, or of the temporary folder.
  int descriptor() const { return descriptor_; }
  // Syncs and renames; the last call. DataError if that fails.
  void publish();

 private:
  AtomicFileWriter(std::filesystem::path path, std::filesystem::path temporary, Kind kind,
                   int descriptor)
      : path_(std::move(path)),
        temporary_(std::move(temporary)),
        kind_(kind),
        descriptor_(descriptor) {}

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  Kind kind_;
  int descriptor_;
  bool published_ = false;
};

}  // namespace lockstep
