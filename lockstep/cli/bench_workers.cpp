#include "lockstep/cli/bench_workers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <sstream>

#include "lockstep/comm/host_identity.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/train/strategy_impl.h"

namespace lockstep::cli {
namespace {

std::vector<int> cores_of(const Device& device) {
  const auto* cpu = dynamic_cast<const CpuDevice*>(&device);
  return cpu != nullptr ? cpu->cores() : std::vector<int>();
}

// The same kind of device, on the same cores.
std::shared_ptr<World> alone(const World& world) {
  const Device& device = world.device(0);
  const bool cpu = device.kind() == DeviceKind::Cpu;
  return std::make_shared<World>(
      WorldOptions{.devices = {cpu ? "cpu:0" : device.name()}, .cores = cores_of(device)});
}

}  // namespace

std::int64_t agreed(World& world, std::int64_t value) {
  if (world.workers() == 1) return value;
  return std::stoll(world.exchange(std::to_string(value)).front());
}

AloneStrategy::AloneStrategy(const World& world) : Strategy({.world = alone(world)}) {}

std::size_t JobCores::count() const {
  std::size_t cores = 0;
  for (const std::vector<int>& own : by_replica) cores += own.size();
  return cores;
}

// A worker says on which host it is, in a line, and then which cores each of its replicas has.
JobCores cores_of_job(World& world) {
  std::string mine = host_identity() + "\n";
  for (int r = 0; r < world.local_size(); ++r) {
    const std::vector<int> cores = cores_of(world.device(r));
    if (!cores.empty()) mine += fmt::format("{}\n", fmt::join(cores, " "));
  }
  JobCores all;
  std::string first_host;
  for (const std::string& theirs : world.exchange(mine)) {
    std::istringstream lines(theirs);
    std::string line;
    std::getline(lines, line);
    if (first_host.empty()) first_host = line;
    if (line != first_host) all.on_one_host = false;
    while (std::getline(lines, line)) {
      std::istringstream numbers(line);
      std::vector<int>& cores = all.by_replica.emplace_back();
      for (int core = 0; numbers >> core;) cores.push_back(core);
    }
  }
  return all;
}

}  // namespace lockstep::cli
