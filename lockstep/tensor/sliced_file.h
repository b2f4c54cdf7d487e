// Tensors in several files. A checkpoint is one safetensors file, or an index and files of slices
// in the same folder: each file holds the slices of one writer, and the index, itself a small
// safetensors file, says which slices each tensor is made of. A reader gets whole tensors, or any
// other slices of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tensor/safetensors.h"
#include "lockstep/tensor/slice_index.h"

namespace lockstep {

// One writer's slice of a tensor of shape `whole`: the box that starts at `begin`.
struct TensorSlice {
  std::string name;  // of the whole tensor
  Shape whole;
  std::vector<std::int64_t> begin;
  Tensor value;
};

// A file of slices that was written, for the index.
struct SliceFile {
  std::string file;         // its name, without the folder
  std::uint64_t bytes = 0;  // its size
  std::map<std::string, SlicedTensor> tensors;
};

// Writing: every writer writes its own file, then one of them writes the index. Each save uses new
// file names (slice_file), so the old index stays valid until the new one replaces it at the very
// end.
//
// Workers of different generations of a job never use the same names.
//
//   const std::int64_t save = next_save(index, generation);           // one writer, told to all
//   SliceFile mine = write_slices(slice_file(index, save, rank, writers), slices);   // each
//   write_index(index, save, contents, files);                                       // one writer
std::int64_t next_save(const std::filesystem::path& index, std::uint64_t generation = 1);
// "run/checkpoint.7.0-of-3.safetensors" for save 7 of "run/checkpoint.safetensors".
std::filesystem::path slice_file(const std::filesystem::path& index, std::int64_t save, int writer,
                                 int writers);
SliceFile write_slices(const std::filesystem::path& file, std::span<const TensorSlice> slices);
// The same about a file that another writer has written. DataError if it is missing or damaged.
SliceFile slices_in(const std::filesystem::path& file);
// `contents` is stored in the index file itself: metadata, and tensors that are not sliced.
// UsageError if slices overlap or leave a gap; then, and if the index cannot be written, the old
// one stays. Files of earlier saves are removed afterwards.
void write_index(const std::filesystem::path& index, std::int64_t save, const TensorFile& contents,
                 std::span<const SliceFile> files);
// The two halves of it: an index at any place in the folder, and the removal of earlier saves.
void write_index(const std::filesystem::path& file, const TensorFile& contents,
                 std::span<const SliceFile> files);
void remove_saves_before(const std::filesystem::path& index, std::int64_t save);
// Removes a file of tensors, or an index and its slices; the index first. What is not there is
// removed.
void remove_tensors(const std::filesystem::path& file);

// Reading, from a file of tensors or an index. Every call may throw DataError, naming the file and
// the tensor.
class TensorReader {
 public:
  explicit TensorReader(const std::filesystem::path& file);
  ~TensorReader();

  const std::map<std::string, std::string>& metadata() const;
  std::vector<std::string> names() const;
  // UsageError if there is no such tensor.
  DType dtype(const std::string& name) const;
  const Shape& shape(const std::string& name) const;
  Tensor read(const std::string& name) const;
  // The box of this shape that starts at `begin`. Reads and checks the stored slices that it
  // touches. UsageError if it is not inside the tensor.
  Tensor read_slice(const std::string& name, std::span<const std::int64_t> begin,
                    const Shape& shape) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// A checksum of the header of a file of tensors or an index. It covers their checksums, and so all
// that load_tensors reads. DataError if the header cannot be read.
std::uint32_t header_checksum(const std::filesystem::path& file);

// All tensors of a file or of an index.
TensorFile load_tensors(const std::filesystem::path& file);

}  // namespace lockstep
