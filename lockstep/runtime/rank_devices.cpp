#include "lockstep/runtime/rank_devices.h"

#include <algorithm>
#include <charconv>
#include <set>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/cuda/cuda_device.h"

namespace lockstep {
namespace {

// The number of a logical CPU device; UsageError, with what there is, for any other name.
int cpu_index(const std::string& name) {
  int index = -1;
  constexpr std::string_view kPrefix = "cpu:";
  if (name.starts_with(kPrefix)) {
    const char* end = name.data() + name.size();
    const auto [stop, error] = std::from_chars(name.data() + kPrefix.size(), end, index);
    if (error != std::errc() || stop != end) index = -1;
  }
  require(index >= 0 && index < 1024,
          "[strategy] there is no device {}: name logical CPU devices, cpu:0, cpu:1, …, or GPUs, "
          "cuda:0, …",
          name);
  return index;
}

RankDevices make_cpus(const std::vector<std::string>& names, int count,
                      const std::vector<int>& cores) {
  for (const std::string& name : names) {
    require(cpu_index(name) < count,
            "[strategy] there is no device {}: the cores are split into {} logical devices", name,
            count);
  }
  std::vector<std::unique_ptr<CpuDevice>> all =
      cores.empty() ? make_cpu_devices(count) : make_cpu_devices(count, cores);
  RankDevices made;
  made.caller_runs_first =
      all[static_cast<std::size_t>(cpu_index(names.front()))]->cores().size() == 1;
  for (const std::string& name : names) {
    made.devices.push_back(std::move(all[static_cast<std::size_t>(cpu_index(name))]));
  }
  return made;
}

RankDevices make_gpus(const std::vector<std::string>& names) {
  require(std::ranges::all_of(names, names_cuda),
          "[strategy] {}: replicas are on CPUs or on GPUs, not on both", fmt::join(names, ", "));
  RankDevices made;
  for (const std::string& name : names) made.devices.push_back(make_cuda_device(name));
  made.threaded = names.size() > 1;
  return made;
}

}  // namespace

int logical_cpus_for(const std::vector<std::string>& names) {
  int count = 0;
  for (const std::string& name : names) {
    if (!names_cuda(name)) count = std::max(count, cpu_index(name) + 1);
  }
  return count;
}

RankDevices make_rank_devices(const std::vector<std::string>& names, int logical_cpus,
                              const std::vector<int>& cores) {
  require(std::set(names.begin(), names.end()).size() == names.size(),
          "[strategy] a device is named twice in {}", fmt::join(names, ", "));
  if (std::ranges::any_of(names, names_cuda)) return make_gpus(names);
  return make_cpus(names, logical_cpus > 0 ? logical_cpus : logical_cpus_for(names), cores);
}

}  // namespace lockstep
