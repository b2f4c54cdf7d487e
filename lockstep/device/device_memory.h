// The memory that a device computes in, which several devices may share.
#pragma once

#include <cstddef>
#include <string>

#include "lockstep/device/device.h"

namespace lockstep {

// Devices with the same name of memory share it: groups of cores share the machine's, the parts of
// a GPU its own.
struct DeviceMemory {
  std::string name;  // "the machine", "cuda:1"
  std::size_t bytes = 0;
};

DeviceMemory memory_of(const Device& device);

}  // namespace lockstep
