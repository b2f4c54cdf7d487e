#include "lockstep/comm/cuda/gpu_group.h"

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/comm/cuda/nccl_group.h"
#include "lockstep/comm/cuda/shared_gpu_group.h"
#include "lockstep/device/cuda/cuda_device.h"

namespace lockstep {

std::unique_ptr<Group> make_gpu_group(const std::vector<Device*>& devices,
                                      std::chrono::milliseconds timeout) {
  std::set<int> gpus;
  for (const Device* device : devices) gpus.insert(gpu_of(*device).index);
  if (gpus.size() == devices.size()) return make_nccl_group(devices, timeout);
  require(gpus.size() == 1,
          "[strategy] {} replicas on {} GPUs: give each replica a GPU of its own, or let all share "
          "one",
          devices.size(), gpus.size());
  return make_shared_gpu_group(devices, timeout);
}

}  // namespace lockstep
