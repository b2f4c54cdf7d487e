#include "lockstep/device/cuda/gpu_state.h"

#include <fmt/format.h>

#include "lockstep/device/cuda/runtime.h"

namespace lockstep {

std::string uuid_of(const Gpu& gpu) {
  cudaDeviceProp properties = {};
  if (cudaGetDeviceProperties(&properties, gpu.index) != cudaSuccess) return "";
  std::string text = "GPU-";
  bool known = false;
  for (std::size_t i = 0; i < sizeof(properties.uuid.bytes); ++i) {
    const auto byte = static_cast<unsigned char>(properties.uuid.bytes[i]);
    if (i == 4 || i == 6 || i == 8 || i == 10) text += "-";
    text += fmt::format("{:02x}", byte);
    known = known || byte != 0;
  }
  return known ? text : "";
}

// An error that stays is returned by every later call; others are forgotten when they are read.
bool is_usable(const Device& device) {
  if (device.kind() != DeviceKind::Cuda) return true;
  cudaGetLastError();
  std::size_t free = 0;
  std::size_t total = 0;
  return cudaSetDevice(gpu_of(device).index) == cudaSuccess &&
         cudaMemGetInfo(&free, &total) == cudaSuccess;
}

}  // namespace lockstep
