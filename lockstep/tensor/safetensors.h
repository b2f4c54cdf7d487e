// Files in the safetensors format: eight bytes with the header's length, a JSON header with the
// dtype, shape and offsets of each tensor, then the tensors' bytes. PyTorch, TensorFlow and JAX
// read and write it too. Files written here have a checksum of the header and of every tensor in
// their metadata; files of other programs need none.
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
  // Only for writing: each becomes one tensor with one axis, the values of these tensors one after
  // the other. This stores many small tensors as one without copying them together.
  std::map<std::string, std::vector<Tensor>> rows = {};
};

// Writes as write_file does: the file appears whole or not at all. DataError, naming the file and
// the cause, if that fails; nothing is left behind then.
void save_safetensors(const std::filesystem::path& file, const TensorFile& contents);

// The bytes of such a file; `name` is for messages.
std::string safetensors_bytes(const TensorFile& contents, const std::string& name);

// DataError, naming the file and what is wrong, for anything that is not a complete, valid file,
// and if any bit has changed since save_safetensors wrote it.
TensorFile load_safetensors(const std::filesystem::path& file);
// The same from bytes in memory; `name` is for messages.
TensorFile parse_safetensors(std::span<const std::byte> bytes, const std::string& name);

}  // namespace lockstep
