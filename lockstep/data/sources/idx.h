// IDX files, as MNIST and its kin are kept: two zero bytes, a type, the number of axes, the
// extents, then the elements, all big-endian. Files may be compressed with gzip.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// u8, i32, f32 and f64 are read as they are, 16-bit integers as i32; signed bytes are not read.
// DataError, naming the file and what is wrong, for anything that is not a whole, valid file.
Tensor load_idx(const std::filesystem::path& file);
// The same from bytes in memory; `name` is for messages.
Tensor parse_idx(std::span<const std::byte> bytes, const std::string& name);

}  // namespace lockstep
