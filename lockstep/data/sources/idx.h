// IDX files, the format of MNIST and its variants: two zero bytes, a type, the number of axes, the
// extents, then the elements, all big-endian. Files may be compressed with gzip.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

// u8, i32, f32 and f64 keep their type, 16-bit integers become i32; signed bytes are not supported.
// DataError, naming the file and what is wrong, for anything that is not a complete, valid file.
Tensor load_idx(const std::filesystem::path& file);
// The same from bytes in memory; `name` is for messages.
Tensor parse_idx(std::span<const std::byte> bytes, const std::string& name);

}  // namespace lockstep
