// The index of a checkpoint in several files: which slices a tensor is made of, and which file
// holds each. It is JSON text:
//
//   {"files": ["checkpoint.1.0-of-2.safetensors", ...], "bytes": [40960, ...],
//    "tensors": {"dense/kernel": {"dtype": "f32", "shape": [4, 6], "slices":
//       [{"file": 0, "name": "dense/kernel@0,0", "begin": [0, 0], "shape": [2, 6],
//         "crc32c": "0a1b2c3d"}, ...]}}}
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// Where a slice belongs in its tensor, and in which file and under which name it is stored.
struct StoredSlice {
  std::size_t file = 0;  // index into SliceIndex::files
  std::string name;
  std::vector<std::int64_t> begin;  // an offset per axis
  Shape shape;
  std::uint32_t checksum = 0;
};

struct SlicedTensor {
  DType dtype = DType::F32;
  Shape shape;
  std::vector<StoredSlice> slices;
};

struct SliceIndex {
  std::vector<std::string> files;    // names in the folder of the index
  std::vector<std::uint64_t> bytes;  // their sizes; none: an earlier version wrote it
  std::map<std::string, SlicedTensor> tensors;
};

std::string index_text(const SliceIndex& index);
// DataError, naming the file and the tensor, if the text is not an index, or if slices overlap,
// reach beyond their tensor or leave a gap.
SliceIndex parse_index(std::string_view text, const std::string& file);
// The same checks for an index that is to be written.
void expect_whole(const SliceIndex& index, const std::string& file);

}  // namespace lockstep
