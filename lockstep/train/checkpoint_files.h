// The files of a checkpoint, and how they are committed. One worker writes one file, or all write
// slices and the chief an index of them (tensor/sliced_file.h). A checkpoint exists when the file
// with its name does, which is written last: a whole file, or an index that has the sizes and
// checksums of slices that are all on disk.
//
// A chief that was taken for dead may still be writing when another one has taken over. Where the
// workers have a membership, a chief therefore writes under a name with its generation
// (checkpoint.g3-s120.safetensors), asks the membership to commit it, and only then gives it the
// checkpoint's name. What was not committed is removed. Before a chief renames its own file, it
// removes those of older generations: an old chief that wakes up between its commit and its
// renaming has nothing to rename. Where the membership keeps a record (etcd), the name with the
// generation stays until the next commit, and a job resumes from what the record names.
#pragma once

#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "lockstep/exec/state.h"
#include "lockstep/runtime/world.h"
#include "lockstep/tensor/sliced_file.h"
#include "lockstep/train/checkpoint.h"

namespace lockstep {

// The state after one step, in memory of its own.
struct Snapshot {
  bool sliced = false;  // whether all workers write
  TensorFile contents;  // what the chief writes, besides its parts
  // Rows of variables that this worker writes, with the tensors' names.
  std::vector<std::string> names;
  std::vector<VariableImage> images;
};

struct CheckpointPlace {
  std::filesystem::path file;
  std::filesystem::path latest = {};  // becomes another name of the file
  // Values that are not finite go to another file (not_finite_name), and nothing else changes.
  bool keep_good = false;
  bool committed_by_members = false;  // if there is a membership
  // Called by the chief when the checkpoint exists; not for values that are not finite.
  std::function<void()> on_committed = {};
  // For tests: called before each stage of the writing ("write", "slices", "commit", "publish").
  std::function<void(std::string_view stage)> on_stage = {};
};

// Collective where the snapshot is sliced (World::gather_in_background); otherwise only the chief
// does something. DataError, naming the file, if it cannot be written; CommError if this worker is
// no member any more. The previous checkpoint then stays, and nothing of the new one does.
void write_checkpoint(World& world, const Snapshot& snapshot, const CheckpointPlace& place);

// Removes a checkpoint with all its files.
void remove_checkpoint(const std::filesystem::path& file);

// The file to read for a checkpoint: the one that the members have committed under this name, if
// they keep a record. DataError if that file is missing or another one.
std::filesystem::path committed_file(const World& world, const std::filesystem::path& file);

// Consecutive rows of a tensor.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
// Which rows of each tensor a writer writes: the tensors, one after the other, are cut into parts
// of as nearly the same size as whole rows allow. A scalar has no rows and belongs to nobody.
std::vector<RowRange> rows_of_writer(const NamedVariables& variables, int writer, int writers);

}  // namespace lockstep
