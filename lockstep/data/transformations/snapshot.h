// Snapshots: the elements of a data set in a folder, in element files of limited size.
// snapshot.json describes them: the format, the spec, the signature of the data set they come from,
// and the files with their counts. The folder appears complete or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/data/pipeline/node.h"

namespace lockstep {

struct SnapshotDescription {
  struct File {
    std::string name;
    std::int64_t count = 0;
  };

  std::string signature;  // of the data set it was made from
  std::vector<ElementSpec> spec;
  std::vector<File> files;

  std::int64_t count() const;
};

// Whether a folder contains a snapshot.
bool is_snapshot(const std::filesystem::path& folder);
// DataError, naming the file, if it is missing or damaged.
SnapshotDescription read_snapshot(const std::filesystem::path& folder);

// Writes all elements of the input unless the snapshot exists; waits if another iterator or process
// is writing it. Starts a new file once one has this many bytes. False if the iterator was
// destroyed meanwhile.
bool write_snapshot(const std::filesystem::path& folder, Input& input, std::uint64_t file_bytes);

}  // namespace lockstep
