#include "lockstep/train/multi_worker.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/cluster/failure_policy.h"
#include "lockstep/cluster/join.h"
#include "lockstep/comm/host_identity.h"
#include "lockstep/device/cpu/cpu_device.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/train/strategy_impl.h"

namespace lockstep {
namespace {

// What a worker tells the others about the cores that it may use.
std::string cores_text(const ClusterSpec& spec) {
  return fmt::format("{}\n{}\n{}", host_identity(), spec.cores, fmt::join(available_cores(), " "));
}

void tell_cores(Membership& members, const ClusterSpec& spec) {
  members.store().set(fmt::format("cores/{}", members.worker()), cores_text(spec));
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
  if (sharing == 1 && (spec.cores <= 0 || spec.cores >= std::ssize(cores))) return cores;
  const auto total = static_cast<std::int64_t>(cores.size());
  std::int64_t begin = total * before / sharing;
  std::int64_t end = std::max(begin + 1, total * (before + 1) / sharing);
  if (spec.cores > 0) end = std::min(end, begin + spec.cores);
  return {cores.begin() + begin, cores.begin() + end};
}

// The GPUs of this worker: those that its host's workers all see are divided among them.
std::vector<std::string> own_gpus(const WorkerLinks& links, std::size_t gpus) {
  const auto workers = static_cast<std::size_t>(links.local_workers());
  const auto worker = static_cast<std::size_t>(links.local_worker());
  require(gpus >= workers,
          "[strategy] {} workers of this host share {} GPU{}: start one worker per GPU at most, or "
          "name devices such as cpu:0",
          workers, gpus, gpus == 1 ? "" : "s");
  std::vector<std::string> names;
  for (std::size_t i = gpus * worker / workers; i < gpus * (worker + 1) / workers; ++i) {
    names.push_back(fmt::format("cuda:{}", i));
  }
  return names;
}

WorldOptions world_options(const MultiWorkerOptions& options) {
  return {.devices = options.devices,
          .buckets = options.buckets,
          .timeout = options.timeout,
          .cuda = options.cuda};
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
    if (world.devices.empty() && !find_gpus().gpus.empty()) world.devices = {"cuda:0"};
    return std::make_shared<World>(world);
  }
  const std::shared_ptr<Membership> members =
      join(*spec, {.secret = job_secret(),
                   .heartbeat_timeout = options.heartbeat_timeout,
                   .progress_timeout = options.progress_timeout,
                   .on_failure = failure_policy(*spec, options.on_failure, options.transport),
                   .join_timeout = options.join_timeout});
  world.membership = members;
  world.make_links = [members, spec = *spec, transport = options.transport,
                      timeout = options.timeout]() -> std::shared_ptr<WorkerLinks> {
    tell_cores(*members, spec);  // newcomers ask for them
    return make_worker_links(members, {.transport = transport, .timeout = timeout});
  };
  world.links = world.make_links();
  world.cores = own_cores(*members, *spec, options.timeout);
  if (world.devices.empty()) {
    const std::size_t gpus = find_gpus().gpus.size();
    world.devices = gpus > 0 ? own_gpus(*world.links, gpus) : std::vector<std::string>{"cpu:0"};
  }
  return std::make_shared<World>(world);
}

}  // namespace

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(MultiWorkerOptions options)
    : Strategy({.world = make_world(options),
                .balance = options.balance,
                .check_replicas_every = options.check_replicas_every}) {}

}  // namespace lockstep
