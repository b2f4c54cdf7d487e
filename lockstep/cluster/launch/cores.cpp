#include "lockstep/cluster/launch/cores.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/cpu_device.h"

namespace lockstep::launch {
namespace {

// The smallest limit of this process's control group and those above it (version 2).
int granted_here() {
  std::ifstream groups("/proc/self/cgroup");
  std::string group = "/";
  for (std::string line; std::getline(groups, line);) {
    if (line.starts_with("0::")) group = line.substr(3);
  }
  int least = 0;
  while (true) {
    std::ifstream file("/sys/fs/cgroup" + group + "/cpu.max");
    std::ostringstream text;
    if (file) text << file.rdbuf();
    const int granted = granted_cores(text.str());
    if (granted > 0) least = least == 0 ? granted : std::min(least, granted);
    if (group.empty() || group == "/") return least;
    group.erase(group.find_last_of('/'));
  }
}

}  // namespace

int granted_cores(const std::string& cpu_max) {
  std::istringstream text(cpu_max);
  std::int64_t quota = 0;
  std::int64_t period = 0;
  if (!(text >> quota >> period) || quota <= 0 || period <= 0) return 0;  // "max 100000"
  return static_cast<int>(std::min<std::int64_t>((quota + period - 1) / period, 1 << 20));
}

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
  return share_cores(available_cores(), granted_here(), workers, per_worker);
}

}  // namespace lockstep::launch
