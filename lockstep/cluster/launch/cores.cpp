#include "lockstep/cluster/launch/cores.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/core_quota.h"
#include "lockstep/device/cpu/cpu_device.h"

namespace lockstep::launch {
std::vector<CoreShare> share_cores(const std::vector<int>& cores, int granted, int workers,
                                   int per_worker) {
  const auto there = static_cast<int>(cores.size());
  const int usable = granted > 0 ? std::min(granted, there) : there;
  require(per_worker * workers <= usable,
          "--cores-per-worker {}: {} workers on this host need {} cores, and {} may be used",
          per_worker, workers, per_worker * workers, usable);
  std::vector<CoreShare> shares;
  for (int w = 0; w < workers; ++w) {
    int begin = w * there / workers;
    int end = std::max((w + 1) * there / workers, begin + 1);
    int count = std::max((w + 1) * usable / workers - w * usable / workers, 1);
    if (per_worker > 0) {
      count = per_worker;
      if (granted == 0) begin = w * per_worker, end = begin + per_worker;
    }
    shares.push_back({.affinity = {cores.begin() + begin, cores.begin() + end}, .cores = count});
  }
  return shares;
}

std::vector<CoreShare> share_cores_here(int workers, int per_worker) {
  return share_cores(available_cores(), core_quota(), workers, per_worker);
}

}  // namespace lockstep::launch
