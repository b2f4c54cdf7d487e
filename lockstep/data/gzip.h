// Files compressed with gzip.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "lockstep/device/device.h"

namespace lockstep {

bool is_gzip(std::span<const std::byte> bytes);

struct Unzipped {
  std::shared_ptr<Buffer> buffer;
  std::size_t size = 0;  // of the buffer's bytes, which may be more
};

// What was compressed, all members of the file. DataError, naming the file, where it is cut short,
// damaged, or followed by something else.
Unzipped unzip(std::span<const std::byte> bytes, const std::string& name);

}  // namespace lockstep
