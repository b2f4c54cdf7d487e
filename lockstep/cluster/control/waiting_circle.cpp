#include "lockstep/cluster/control/waiting_circle.h"

#include <cstddef>

namespace lockstep {

std::vector<int> find_waiting_circle(std::span<const int> waits_for) {
  const auto workers = static_cast<int>(waits_for.size());
  std::vector<int> shortest;
  for (int first = 0; first < workers; ++first) {
    std::vector<int> path;
    int at = first;
    while (at >= 0 && at < workers && std::ssize(path) < workers) {
      path.push_back(at);
      at = waits_for[static_cast<std::size_t>(at)];
      if (at == first) break;
    }
    if (at != first || path.size() < 2) continue;
    if (shortest.empty() || path.size() < shortest.size()) shortest = std::move(path);
  }
  return shortest;
}

}  // namespace lockstep
