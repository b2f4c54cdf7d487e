#include "lockstep/train/multi_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/cluster/failure_policy.h"
#include "lockstep/cluster/join.h"
#include "lockstep/comm/host_identity.h"
#include "lockstep/device/cpu/core_quota.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/cuda/gpu_state.h"
#include "lockstep/train/strategy_impl.h"
#include "lockstep/train/worker_gpus.h"

namespace lockstep {
namespace {

// What a worker tells the others about the cores that it may use.
std::string cores_text(const ClusterSpec& spec) {
  return fmt::format("{}\n{}\n{}", host_identity(), spec.cores, fmt::join(available_cores(), " "));
}

// The GPUs that this process sees, a line each.
std::string gpus_text() {
  std::string text;
  for (const Gpu& gpu : find_gpus().gpus) text += uuid_of(gpu) + "\n";
  return text;
}

// For own_cores and own_devices of the others: in every generation, since newcomers ask for it.
void tell_devices(Membership& members, const ClusterSpec& spec) {
  members.store().set(fmt::format("cores/{}", members.worker()), cores_text(spec));
  members.store().set(fmt::format("gpus/{}", members.worker()), gpus_text());
}

// The cores of this worker. Workers of a host that may all use the same cores divide them, each as
// many as it was given where that is known; a launcher may already have divided them.
std::vector<int> own_cores(Membership& members, const ClusterSpec& spec,
                           std::chrono::milliseconds timeout) {
  Store& store = members.store();
  const std::string mine = cores_text(spec);
  int before = 0;
  int sharing = 0;
  for (int w = 0; w < members.workers(); ++w) {
    if (store.get(fmt::format("cores/{}", w), timeout) != mine) continue;
    ++sharing;
    if (w < members.worker()) ++before;
  }
  const std::vector<int> cores = available_cores();
  // What the control group grants is for all of them.
  const int quota = spec.cores > 0 ? 0 : core_quota();
  const int given = quota > 0 ? std::max(quota / sharing, 1) : spec.cores;
  if (sharing == 1 && (given <= 0 || given >= std::ssize(cores))) return cores;
  const auto total = static_cast<std::int64_t>(cores.size());
  std::int64_t begin = total * before / sharing;
  std::int64_t end = std::max(begin + 1, total * (before + 1) / sharing);
  if (given > 0) end = std::min(end, begin + given);
  return {cores.begin() + begin, cores.begin() + end};
}

// The devices of this worker, which has named none: its part of the GPUs that it sees, or its
// cores.
std::vector<std::string> own_devices(Membership& members, const MultiWorkerOptions& options) {
  Store& store = members.store();
  const std::vector<Gpu> gpus = find_gpus().gpus;
  std::vector<std::vector<std::string>> seen;
  for (int w = 0; w < members.workers(); ++w) {
    std::istringstream lines(store.get(fmt::format("gpus/{}", w), options.timeout));
    std::vector<std::string>& theirs = seen.emplace_back();
    for (std::string line; std::getline(lines, line);) theirs.push_back(line);
  }
  std::vector<int> indices;
  for (const int place : own_gpus(seen, members.worker(), options.share_gpus)) {
    indices.push_back(gpus[static_cast<std::size_t>(place)].index);
  }
  return devices_of_replicas(indices, options.replicas, members.worker());
}

// The devices of a worker that is alone in its job: one GPU unless it asks for more, or the cores.
std::vector<std::string> devices_alone(int replicas) {
  std::vector<int> indices;
  for (const Gpu& gpu : find_gpus().gpus) indices.push_back(gpu.index);
  if (replicas == 0 && !indices.empty()) replicas = 1;
  return devices_of_replicas(indices, replicas, 0);
}

WorldOptions world_options(const MultiWorkerOptions& options) {
  return {.devices = options.devices,
          .buckets = options.buckets,
          .timeout = options.timeout,
          .cuda = options.cuda,
          .share_gpus = options.share_gpus};
}

// A process is one worker of its job: the control plane would turn away the second one as somebody
// who claims to be the first.
class WorldOfThisProcess {
 public:
  void expect_none() {
    const std::lock_guard lock(mutex_);
    require(world_.expired(),
            "[strategy] this process already has a MultiWorkerMirroredStrategy, as worker {} of "
            "its job: make one per process and compile all models with it (copies are the same "
            "strategy)",
            worker_);
  }
  void set(const std::shared_ptr<World>& world) {
    const std::lock_guard lock(mutex_);
    world_ = world;
    worker_ = world->worker();
  }

 private:
  std::mutex mutex_;
  std::weak_ptr<World> world_;
  int worker_ = 0;
};

WorldOfThisProcess& world_of_this_process() {
  static WorldOfThisProcess place;
  return place;
}

std::shared_ptr<World> make_world(const MultiWorkerOptions& options) {
  const std::unique_ptr<const ClusterResolver> known =
      options.resolver == nullptr ? default_resolver() : nullptr;
  const ClusterResolver& resolver = known != nullptr ? *known : *options.resolver;
  const std::optional<ClusterSpec> spec = resolver.resolve();
  require(spec.has_value(), "[strategy] {} says nothing about this process's place in a job",
          resolver.name());
  require(spec->role == Role::Chief || spec->role == Role::Worker,
          "[strategy] {} says that this process is no worker: an evaluator and a parameter server "
          "do not train",
          spec->started_by);
  WorldOptions world = world_options(options);
  if (spec->workers == 1) {
    if (world.devices.empty()) world.devices = devices_alone(options.replicas);
    return std::make_shared<World>(world);
  }
  world_of_this_process().expect_none();
  const PortRange ports = options.ports.any() ? job_ports() : options.ports;
  const std::shared_ptr<Membership> members =
      join(*spec, {.secret = job_secret(),
                   .tls = options.tls.empty() ? job_tls() : options.tls,
                   .ports = ports,
                   .heartbeat_timeout = options.heartbeat_timeout,
                   .progress_timeout = options.progress_timeout,
                   .on_failure = failure_policy(*spec, options.on_failure, options.transport),
                   .join_timeout = options.join_timeout});
  world.membership = members;
  world.make_links = [members, spec = *spec, transport = options.transport,
                      timeout = options.timeout, ports]() -> std::shared_ptr<WorkerLinks> {
    tell_devices(*members, spec);
    return make_worker_links(members, {.transport = transport, .timeout = timeout, .ports = ports});
  };
  world.links = world.make_links();
  world.cores = own_cores(*members, *spec, options.timeout);
  if (world.devices.empty()) world.devices = own_devices(*members, options);
  auto made = std::make_shared<World>(world);
  world_of_this_process().set(made);
  return made;
}

}  // namespace

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(MultiWorkerOptions options)
    : Strategy({.world = make_world(options),
                .balance = options.balance,
                .check_replicas_every = options.check_replicas_every}) {}

}  // namespace lockstep
