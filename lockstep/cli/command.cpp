#include "lockstep/cli/command.h"

#include <fmt/core.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/cli/number.h"
#include "lockstep/cluster/cluster_resolver.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/passes/precision.h"
#include "lockstep/runtime/world.h"
#include "lockstep/train/multi_worker.h"

namespace lockstep::cli {
namespace {

// Restricts this process, and the threads it will create, to the first `count` of its cores.
void use_cores(int count) {
  const std::vector<int> cores = available_cores();
  require(static_cast<std::size_t>(count) <= cores.size(),
          "--cores {}: this process may use only {} of the machine's cores", count, cores.size());
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int i = 0; i < count; ++i) CPU_SET(cores[static_cast<std::size_t>(i)], &set);
  require(sched_setaffinity(0, sizeof(set), &set) == 0, "--cores {}: the system refuses it", count);
}

}  // namespace

void add_placement(Command app, Placement& placement) {
  app.add_option("--devices", placement.devices,
                 "devices, one replica on each: cpu:0,cpu:1 (the GPUs, or else cpu:0)")
      .delimiter(',');
  app.add_option("--cores", placement.cores, "how many of the machine's cores to use (all)")
      .check(whole_number(1, kMostCores));
  app.add_option("--replicas", placement.replicas, "copies of the model (one per device)")
      .delimiter(',')
      .check(whole_number(1, kMostReplicas));
  app.add_option("--strategy", placement.strategy,
                 "one-device, mirrored (if there are several replicas) or multi-worker (if this "
                 "process was started as one of several workers)");
  app.add_option("--balance", placement.balance,
                 "even: equal pieces of the batch; auto: pieces that match each replica's speed")
      .capture_default_str();
  app.add_option("--precision", placement.precision,
                 "float32, or 16-bit products and activations: mixed_float16, mixed_bfloat16")
      .capture_default_str();
  app.add_flag("--no-tf32", placement.no_tf32,
               "strict f32 on GPUs: products keep all 23 bits of mantissa (slower)");
  app.add_option("--heartbeat-timeout", placement.heartbeat_timeout,
                 "seconds of silence after which one of several workers counts as failed; the "
                 "chief's counts")
      .check(number(0.1, kMostSeconds))
      .capture_default_str();
  app.add_option("--on-failure", placement.on_failure,
                 "what the others do when one of several workers has failed: stop, restart or "
                 "shrink (what lockstep launch or LOCKSTEP_ON_FAILURE says, else stop)")
      .check(one_of({"stop", "restart", "shrink"}));
}

namespace {

std::optional<OnFailure> on_failure_by_name(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name == "stop") return OnFailure::Stop;
  return name == "restart" ? OnFailure::Restart : OnFailure::Shrink;
}

}  // namespace

std::vector<int> replica_counts(const Placement& placement) {
  precision_by_name("--precision", placement.precision);  // throws for unknown names
  require(placement.balance == "even" || placement.balance == "auto",
          "--balance {}: use even or auto", placement.balance);
  const std::string& strategy = placement.strategy;
  require(strategy.empty() || strategy == "one-device" || strategy == "mirrored" ||
              strategy == "multi-worker",
          "--strategy {}: use one-device, mirrored or multi-worker", strategy);
  std::vector<int> counts = placement.replicas;
  const auto devices = static_cast<int>(placement.devices.size());
  if (counts.empty()) counts = {std::max(devices, 1)};
  for (int count : counts) {
    require(devices == 0 || count <= devices, "--replicas {}: --devices names only {} device(s)",
            count, devices);
    require(strategy != "one-device" || count == 1,
            "--strategy one-device has one replica, not {}: use mirrored", count);
  }
  if (placement.cores > 0) use_cores(placement.cores);
  return counts;
}

int one_count(const Placement& placement) {
  require(placement.replicas.size() <= 1,
          "--replicas {}: this command takes one number; only bench compares several",
          fmt::join(placement.replicas, ","));
  return replica_counts(placement).front();
}

namespace {

// The file that keeps the fastest algorithms between runs, in the user's cache folder; empty if
// there is no such folder.
std::string plan_cache() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::filesystem::path folder;
  if (cache != nullptr && *cache != 0) {
    folder = cache;
  } else if (home != nullptr && *home != 0) {
    folder = std::filesystem::path(home) / ".cache";
  } else {
    return {};
  }
  std::error_code error;
  std::filesystem::create_directories(folder / "lockstep", error);
  return error ? std::string() : (folder / "lockstep" / "cuda-plans").string();
}

// Without --devices: one GPU per replica, or else the cores.
std::vector<std::string> default_devices(const Placement& placement, int most) {
  const std::size_t gpus = placement.cores > 0 ? 0 : find_gpus().gpus.size();
  require(gpus == 0 || static_cast<std::size_t>(most) <= gpus,
          "--replicas {}: this machine has {} GPU{}; let replicas share one (--devices "
          "cuda:0/0,cuda:0/1), or use CPUs (--devices cpu:0,cpu:1)",
          most, gpus, gpus == 1 ? "" : "s");
  std::vector<std::string> devices;
  for (int r = 0; r < most; ++r) {
    devices.push_back(fmt::format("{}:{}", gpus > 0 ? "cuda" : "cpu", r));
  }
  return devices;
}

}  // namespace

bool is_one_of_several(const Placement& placement) {
  if (!placement.strategy.empty()) return placement.strategy == "multi-worker";
  const ClusterSpec spec = *default_resolver()->resolve();
  return spec.workers > 1 && spec.role != Role::Evaluator;
}

bool is_evaluator(const Placement& placement) {
  if (!placement.strategy.empty() && placement.strategy != "multi-worker") return false;
  return default_resolver()->resolve()->role == Role::Evaluator;
}

bool is_chief(const Placement& placement) {
  return !is_one_of_several(placement) || default_resolver()->resolve()->role == Role::Chief;
}

Strategy make_strategy(const Placement& placement, int replicas, int most) {
  const Balance balance = placement.balance == "auto" ? Balance::Auto : Balance::Even;
  const CudaKernelOptions cuda{.allow_tf32 = !placement.no_tf32, .plan_cache = plan_cache()};
  if (is_one_of_several(placement)) {
    std::vector<std::string> devices = placement.devices;
    if (devices.empty() && replicas > 1) devices = default_devices(placement, most);
    if (!devices.empty()) devices.resize(static_cast<std::size_t>(replicas));
    const std::chrono::duration<double> silence(placement.heartbeat_timeout);
    return MultiWorkerMirroredStrategy(
        {.devices = devices,
         .balance = balance,
         .cuda = cuda,
         .on_failure = on_failure_by_name(placement.on_failure),
         .heartbeat_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(silence)});
  }
  std::vector<std::string> devices =
      placement.devices.empty() ? default_devices(placement, most) : placement.devices;
  const int split = placement.devices.empty() && most == 1 ? 0 : logical_cpus_for(devices);
  devices.resize(static_cast<std::size_t>(replicas));
  return MirroredStrategy(
      {.devices = std::move(devices), .logical_cpus = split, .balance = balance, .cuda = cuda});
}

std::string strategy_name(const Placement& placement, int replicas) {
  if (!placement.strategy.empty()) return placement.strategy;
  if (is_one_of_several(placement)) return "multi-worker";
  return replicas > 1 ? "mirrored" : "one-device";
}

std::string precision_text(const Placement& placement, const Strategy& strategy) {
  if (placement.precision != "float32") return ", " + placement.precision;
  if (!strategy.devices().front().starts_with("cuda")) return "";
  return placement.no_tf32 ? ", strict float32" : ", float32 with TF32 products";
}

void add_batch(Command app, BatchFlags& flags) {
  app.add_option("--batch-per-replica", flags.per_replica, "samples per step on each replica")
      .check(whole_number(1, kMostSamples));
  app.add_option("--global-batch,--batch", flags.global, "samples per step on all replicas")
      .check(whole_number(1, kMostSamples));
}

std::int64_t global_batch(const BatchFlags& flags, int replicas, std::int64_t otherwise) {
  if (flags.global == 0) {
    return replicas * (flags.per_replica > 0 ? flags.per_replica : otherwise);
  }
  require(flags.per_replica == 0 || flags.per_replica * replicas == flags.global,
          "--global-batch {} is not {} replica(s) of --batch-per-replica {}; give one of the two",
          flags.global, replicas, flags.per_replica);
  require(flags.global >= replicas,
          "--global-batch {}: there are {} replicas and each needs a sample", flags.global,
          replicas);
  return flags.global;
}

std::int64_t batch_per_replica(const BatchFlags& flags, int replicas, std::int64_t otherwise) {
  const std::int64_t batch = global_batch(flags, replicas, otherwise);
  require(batch % replicas == 0, "--global-batch {} is not a multiple of {} replicas", batch,
          replicas);
  return batch / replicas;
}

}  // namespace lockstep::cli
