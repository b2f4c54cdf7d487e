// Files in the safetensors format: eight bytes with the header's length, a JSON header that tells
// dtype, shape and place of each tensor, then the tensors' bytes. PyTorch, TensorFlow and JAX read
// and write it too. Files written here have a checksum of the header and of every tensor in their
// metadata; files of other programs need none.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tensor/tensor.h"

namespace lockstep {

struct TensorFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
  // Only for writing: tensors of one axis, each the values of these tensors one after the other, so
  // that many small tensors are one in the file without a copy of them.
  std::map<std::string, std::vector<Tensor>> rows = {};
};

// Writes to a temporary name beside the file, syncs, renames, syncs the folder: the file appears
// whole or not at all. DataError, naming the file and the cause, where that fails; no rest is left.
void save_safetensors(const std::filesystem::path& file, const TensorFile& contents);

// DataError, naming the file and what is wrong, for anything that is not a whole, valid file, and
// for every bit that has changed since save_safetensors wrote it.
TensorFile load_safetensors(const std::filesystem::path& file);
// The same from bytes in memory; `name` is for messages.
TensorFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name);

}  // namespace lockstep
