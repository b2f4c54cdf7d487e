// Claim: the right to write a file or folder that appears whole or not at all.
//
// What is written lies beside, under the name with ".writing" behind it, until it is published:
// then it is renamed. Whoever writes holds a lock on it, so that of several processes, or several
// iterators of one, a single one writes. A process that died has no lock any more, and what it left
// is cleared away by the next that claims the same.
#pragma once

#include <filesystem>
#include <memory>

namespace lockstep {

class Claim {
 public:
  enum class Kind { File, Folder };

  // Null where somebody else is writing it, or it has appeared. DataError, naming it and the cause,
  // where it cannot be written at all.
  static std::unique_ptr<Claim> make(const std::filesystem::path& path, Kind kind);
  // Deletes what was written unless it was published.
  ~Claim();
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;

  // Where to write. Empty at first.
  const std::filesystem::path& temporary() const { return temporary_; }
  // Of the file, open for writing; of the folder.
  int descriptor() const { return descriptor_; }
  // Syncs and renames; the last call. DataError where that fails.
  void publish();

 private:
  Claim(std::filesystem::path path, std::filesystem::path temporary, Kind kind, int descriptor)
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
