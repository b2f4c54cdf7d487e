// Whole files in and out of the host's memory.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/device/device.h"

namespace lockstep {

// The bytes of a regular file, read at once into memory of exactly its size. DataError, naming the
// file and the cause, where it cannot be read.
std::shared_ptr<Buffer> read_file(const std::filesystem::path& file);

// Writes the pieces one after the other to a temporary name beside the file, syncs, renames, syncs
// the folder: the file appears whole or not at all, and an older one stays until then. DataError,
// naming the file and the cause, where that fails; no temporary file is left.
void write_file(const std::filesystem::path& file,
                std::span<const std::span<const std::byte>> pieces);

}  // namespace lockstep
