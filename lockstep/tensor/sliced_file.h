// Tensors in several files. A checkpoint is one safetensors file, or an index and files of slices
// that lie beside it: each file holds slices of tensors, as different writers have them, and the
// index, itself a small safetensors file, says which slices each tensor is made of. Whoever reads
// takes whole tensors, or slices of any other division.
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

// What one writer has of a tensor of shape `whole`: the box from `begin` on.
struct TensorSlice {
  std::string name;  // of the whole tensor
  Shape whole;
  std::vector<std::int64_t> begin;
  Tensor value;
};

// A file of slices that was written, for the index.
struct SliceFile {
  std::string file;  // its name, without the folder
  std::map<std::string, SlicedTensor> tensors;
};

// Writing: every writer writes a file of its own, then one of them the index of all. Files get
// names that no other save of this index has (slice_file), so that the index that is there stays
// whole until the new one takes its place, which is the last thing that happens.
//
//   const std::int64_t save = next_save(index);                       // one writer, told to all
//   SliceFile mine = write_slices(slice_file(index, save, rank, writers), slices);   // each
//   write_index(index, save, contents, files);                                       // one writer
std::int64_t next_save(const std::filesystem::path& index);
// "run/checkpoint.7.0-of-3.safetensors" for save 7 of "run/checkpoint.safetensors".
std::filesystem::path slice_file(const std::filesystem::path& index, std::int64_t save, int writer,
                                 int writers);
SliceFile write_slices(const std::filesystem::path& file, std::span<const TensorSlice> slices);
// `contents` is what lies in the index file itself: metadata, and tensors that are in one piece.
// UsageError where slices overlap or leave a hole; then, and where it cannot be written, the old
// index stays. Files of earlier saves are removed afterwards.
void write_index(const std::filesystem::path& index, std::int64_t save, const TensorFile& contents,
                 std::span<const SliceFile> files);

// Reading, from a file of tensors or an index. Every call may throw DataError, naming the file and
// the tensor.
class TensorReader {
 public:
  explicit TensorReader(const std::filesystem::path& file);
  ~TensorReader();

  const std::map<std::string, std::string>& metadata() const;
  std::vector<std::string> names() const;
  // UsageError where there is no such tensor.
  DType dtype(const std::string& name) const;
  const Shape& shape(const std::string& name) const;
  Tensor read(const std::string& name) const;
  // The box of this shape from `begin` on. Reads, and checks, the stored slices that it touches.
  // UsageError where the tensor does not have it.
  Tensor read_slice(const std::string& name, std::span<const std::int64_t> begin,
                    const Shape& shape) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// All tensors of a file or of an index.
TensorFile load_tensors(const std::filesystem::path& file);

}  // namespace lockstep
