#include "lockstep/train/worker_gpus.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep {

std::vector<int> own_gpus(const std::vector<std::vector<std::string>>& seen, int worker,
                          bool share_gpus) {
  for (const std::vector<std::string>& gpus : seen) {
    const auto workers = std::ranges::count(seen, gpus);
    if (gpus.empty() || share_gpus) continue;
    require(std::ssize(gpus) >= workers,
            "[strategy] {} workers of a host share {} GPU{}: start one worker per GPU at most, or "
            "name devices such as cpu:0",
            workers, gpus.size(), gpus.size() == 1 ? "" : "s");
  }
  const std::vector<std::string>& mine = seen[static_cast<std::size_t>(worker)];
  const auto gpus = std::ssize(mine);
  if (gpus == 0) return {};
  const auto sharing = std::ranges::count(seen, mine);
  const auto before = std::count(seen.begin(), seen.begin() + worker, mine);
  if (gpus < sharing) return {static_cast<int>(before % gpus)};
  std::vector<int> own;
  for (auto i = gpus * before / sharing; i < gpus * (before + 1) / sharing; ++i) {
    own.push_back(static_cast<int>(i));
  }
  return own;
}

std::vector<std::string> devices_of_replicas(const std::vector<int>& gpus, int replicas,
                                             int worker) {
  require(gpus.empty() || replicas <= std::ssize(gpus),
          "[strategy] worker {} is to have {} replicas, but its share of its host's GPUs is {}: "
          "ask for fewer replicas or start fewer workers there, or name devices such as cpu:0",
          worker, replicas, gpus.size());
  const int count = replicas > 0 ? replicas : std::max(static_cast<int>(gpus.size()), 1);
  std::vector<std::string> names;
  for (int r = 0; r < count; ++r) {
    names.push_back(gpus.empty() ? fmt::format("cpu:{}", r)
                                 : fmt::format("cuda:{}", gpus[static_cast<std::size_t>(r)]));
  }
  return names;
}

}  // namespace lockstep
