#include "lockstep/device/cpu/core_quota.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>

namespace lockstep {

int granted_cores(const std::string& cpu_max) {
  std::istringstream text(cpu_max);
  std::int64_t quota = 0;
  std::int64_t period = 0;
  if (!(text >> quota >> period) || quota <= 0 || period <= 0) return 0;  // "max 100000"
  return static_cast<int>(std::min<std::int64_t>((quota + period - 1) / period, 1 << 20));
}

namespace {

std::string text_of(const std::string& file) {
  std::ifstream stream(file);
  std::ostringstream text;
  if (stream) text << stream.rdbuf();
  return text.str();
}

// The least of a group and those above it. `cpu_max` reads the limit of a folder.
template <class CpuMax>
int least_from(const std::string& mount, std::string group, const CpuMax& cpu_max) {
  int least = 0;
  while (true) {
    const int granted = granted_cores(cpu_max(mount + group));
    if (granted > 0) least = least == 0 ? granted : std::min(least, granted);
    if (group.empty() || group == "/") return least;
    group.erase(group.find_last_of('/'));
  }
}

}  // namespace

// Lines such as "0::/a/b" in version 2, and "4:cpu,cpuacct:/a/b" in version 1, where the limit is
// in two files and -1 is none.
int core_quota(const std::filesystem::path& root) {
  const std::string mount = (root / "sys/fs/cgroup").string();
  const auto version_2 = [](const std::string& folder) { return text_of(folder + "/cpu.max"); };
  const auto version_1 = [](const std::string& folder) {
    return text_of(folder + "/cpu.cfs_quota_us") + " " + text_of(folder + "/cpu.cfs_period_us");
  };
  int least = least_from(mount, "/", version_2);
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || second + 1 == line.size() || line[second + 1] != '/') {
      continue;
    }
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    int found = 0;
    if (controllers == ",,") {
      found = least_from(mount, group, version_2);
    } else if (controllers.find(",cpu,") != std::string::npos) {
      found = least_from(mount + "/cpu", group, version_1);
    }
    if (found > 0) least = least == 0 ? found : std::min(least, found);
  }
  return least;
}

std::vector<int> some_cores(const std::vector<int>& cores, int count, int first) {
  std::vector<int> some;
  for (int i = 0; i < count && i < std::ssize(cores); ++i) {
    some.push_back(cores[static_cast<std::size_t>(first + i) % cores.size()]);
  }
  std::ranges::sort(some);
  return some;
}

}  // namespace lockstep
