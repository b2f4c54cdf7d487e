// Snapshots: the elements of a data set in a folder, in element files of bounded size, and
// snapshot.json, which says what they are: the format, the spec, the signature of the data set they
// were made of, and the files with their counts. The folder appears whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/data/node.h"

namespace lockstep {

struct SnapshotDescription {
  struct File {
    std::string name;
    std::int64_t count = 0;
  };

  std::string signature;  // of the data set that it was made of
  std::vector<ElementSpec> spec;
  std::vector<File> files;

  std::int64_t count() const;
};

// Whether there is a snapshot in a folder.
bool is_snapshot(const std::filesystem::path& folder);
// DataError, naming the file, where it is missing or damaged.
SnapshotDescription read_snapshot(const std::filesystem::path& folder);

// Writes all that the input gives, unless it is there already; waits for another who is writing it.
// A file takes elements until it has this many bytes. False where the iterator ended meanwhile.
bool write_snapshot(const std::filesystem::path& folder, Input& input, std::uint64_t file_bytes);

}  // namespace lockstep
