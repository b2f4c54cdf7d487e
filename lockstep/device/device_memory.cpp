#include "lockstep/device/device_memory.h"

#include <fmt/core.h>

#include "lockstep/device/cpu/memory.h"
#include "lockstep/device/cuda/cuda_device.h"

namespace lockstep {

DeviceMemory memory_of(const Device& device) {
  if (!names_cuda(device.name())) return {.name = "the machine", .bytes = machine_memory()};
  const Gpu gpu = gpu_of(device);
  return {.name = fmt::format("cuda:{}", gpu.index), .bytes = gpu.memory_bytes};
}

}  // namespace lockstep
