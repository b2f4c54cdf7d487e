// Replaces this folder in a build without CUDA.
#include "lockstep/base/error.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/device/cuda/gpu_state.h"

namespace lockstep {
namespace {

constexpr const char* kWhy =
    "this Lockstep was built without CUDA: install the CUDA toolkit 13 with cuDNN 9 and NCCL, and "
    "configure it again, with -DLOCKSTEP_CUDA=ON";

}  // namespace

GpuInventory find_gpus() {
  return {.gpus = {}, .why_none = kWhy};
}

std::string cuda_version() {
  return "";
}

std::unique_ptr<Device> make_cuda_device(std::string_view name) {
  parse_cuda_name(name);
  fail<UsageError>("[device] {} cannot be used: {}", name, kWhy);
}

Gpu gpu_of(const Device& device) {
  fail<UsageError>("[device] {} is not a GPU", device.name());
}

std::size_t free_gpu_bytes(const Device& device) {
  fail<UsageError>("[device] {} is not a GPU", device.name());
}

std::string uuid_of(const Gpu& /*gpu*/) {
  return "";
}

bool is_usable(const Device& /*device*/) {
  return true;
}

}  // namespace lockstep
