#include "lockstep/runtime/job_devices.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/device/cuda/gpu_state.h"

namespace lockstep {
namespace {

void expect_one_kind(const std::vector<std::vector<JobDevice>>& of_worker) {
  const JobDevice& first = of_worker.front().front();
  for (std::size_t w = 1; w < of_worker.size(); ++w) {
    const JobDevice& other = of_worker[w].front();
    require(names_cuda(first.name) == names_cuda(other.name),
            "[strategy] worker 0 has {} and worker {} has {}: all workers train on GPUs, or all on "
            "CPUs; name the devices of every worker, such as cpu:0, or start them where each has a "
            "GPU",
            first.name, w, other.name);
  }
}

void expect_own_gpus(const std::vector<std::vector<JobDevice>>& of_worker, bool share_gpus) {
  std::map<std::string, std::pair<std::size_t, std::string>> users;  // worker and name, by GPU
  for (std::size_t w = 0; w < of_worker.size(); ++w) {
    for (const JobDevice& device : of_worker[w]) {
      if (device.gpu.empty()) continue;
      const auto [found, added] = users.emplace(device.gpu, std::pair(w, device.name));
      if (added) continue;
      const auto& [worker, name] = found->second;
      require(
          worker != w,
          "[strategy] {} and {} of worker {} are the same GPU ({}): where there are several "
          "workers, each replica needs a GPU of its own; name one device for each GPU, or start "
          "one worker alone",
          name, device.name, w, device.gpu);
      require(share_gpus,
              "[strategy] {} of worker {} and {} of worker {} are the same GPU ({}): start one "
              "worker for each GPU at most, and name other devices for one of them or let it see "
              "other GPUs (CUDA_VISIBLE_DEVICES)",
              name, worker, device.name, w, device.gpu);
    }
  }
}

}  // namespace

std::string describe(const std::vector<Device*>& devices) {
  std::string text;
  for (const Device* device : devices) {
    const bool cuda = device->kind() == DeviceKind::Cuda;
    text += fmt::format("{}\t{}\n", device->name(), cuda ? uuid_of(gpu_of(*device)) : "");
  }
  return text;
}

std::vector<JobDevice> parse_job_devices(std::string_view text) {
  std::vector<JobDevice> devices;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    const std::size_t tab = line.find('\t');
    ensure(tab != std::string_view::npos && line.size() < text.size(),
           "[strategy] a worker's devices are told as '{}'", text);
    devices.push_back(
        {.name = std::string(line.substr(0, tab)), .gpu = std::string(line.substr(tab + 1))});
    text.remove_prefix(line.size() + 1);
  }
  return devices;
}

void check_job_devices(const std::vector<std::vector<JobDevice>>& of_worker, bool share_gpus) {
  expect_one_kind(of_worker);
  expect_own_gpus(of_worker, share_gpus);
}

}  // namespace lockstep
