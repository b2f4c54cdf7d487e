#include "lockstep/cli/command.h"

#include <fmt/core.h>
#include <sched.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "lockstep/base/error.h"
#include "lockstep/cli/number.h"
#include "lockstep/cluster/address.h"
#include "lockstep/cluster/cluster_resolver.h"
#include "lockstep/cluster/join.h"
#include "lockstep/device/cpu/core_quota.h"
#include "lockstep/device/cuda/cuda_device.h"
#include "lockstep/passes/precision.h"
#include "lockstep/runtime/world.h"
#include "lockstep/train/multi_worker.h"

namespace lockstep::cli {
namespace {

// Restricts this process, and the threads it will create.
void restrict_to(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  require(sched_setaffinity(0, sizeof(set), &set) == 0, "--cores {}: the system refuses it",
          cores.size());
}

// To the first `count` of its cores.
void use_cores(int count) {
  const std::vector<int> cores = available_cores();
  require(static_cast<std::size_t>(count) <= cores.size(),
          "--cores {}: this process may use only {} of the machine's cores", count, cores.size());
  restrict_to({cores.begin(), cores.begin() + count});
}

// As many as the control group grants time for. Threads on more cores would use that time up in
// turns, and stand still until there is more.
void use_granted_cores() {
  const std::vector<int> cores = available_cores();
  const int granted = core_quota();
  if (granted == 0 || granted >= std::ssize(cores)) return;
  restrict_to(some_cores(cores, granted, getpid() % static_cast<int>(cores.size())));
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
  app.add_option("--progress-timeout", placement.progress_timeout,
                 "seconds after which one of several workers that makes no progress while others "
                 "wait counts as failed; the chief's counts")
      .check(number(0.1, kMostSeconds))
      .capture_default_str();
  app.add_option("--port-range", placement.port_range,
                 "ports that one of several workers may listen on for others: 29500-29600 "
                 "(LOCKSTEP_PORT_RANGE, or any)");
  add_tls(app, placement.tls);
}

void add_memory(Command app, MemoryFlags& flags) {
  app.add_option(
         "--accumulate", flags.accumulate,
         "micro-batches that a replica's batch is divided into, one after another; auto: as "
         "few as fit into memory")
      .capture_default_str();
  app.add_option("--recompute", flags.recompute,
                 "activations that are computed again instead of kept: none, blocks, auto (what it "
                 "takes to fit), or a budget for the step's memory (2GiB)")
      .capture_default_str();
  app.add_option("--shard", flags.shard,
                 "what each of several replicas keeps only a slice of: 0 nothing, 1 the "
                 "optimizer's state, 2 also gradients, 3 also parameters")
      .check(whole_number(0, 3))
      .capture_default_str();
  app.add_option("--gather-budget", flags.gather_budget,
                 "with --shard 3, the memory for whole parameters, in use and gathered ahead: auto "
                 "(twice the largest bucket), or 64MiB")
      .capture_default_str();
  app.add_option("--offload", flags.offload,
                 "what is kept in the host's memory: none, or optimizer (its state)")
      .check(one_of({"none", "optimizer"}))
      .capture_default_str();
  app.add_option("--gradient-dtype", flags.gradient_dtype,
                 "how gradients are communicated: float32, or bfloat16 or float16 with error "
                 "feedback")
      .check(one_of({"float32", "bfloat16", "float16"}))
      .capture_default_str();
}

MemoryOptions memory_options(const MemoryFlags& flags) {
  MemoryOptions memory{
      .recompute = flags.recompute,
      .shard = flags.shard,
      .gather_bytes =
          flags.gather_budget == "auto" ? 0 : bytes_by_text("--gather-budget", flags.gather_budget),
      .offload = offload_by_name("--offload", flags.offload),
      .gradients = gradient_type_by_name("--gradient-dtype", flags.gradient_dtype)};
  if (flags.accumulate == "auto") {
    memory.accumulate = 0;
  } else {
    const char* end = flags.accumulate.data() + flags.accumulate.size();
    const auto [stop, error] = std::from_chars(flags.accumulate.data(), end, memory.accumulate);
    require(error == std::errc() && stop == end && memory.accumulate > 0,
            "--accumulate {}: write a number of micro-batches from 1 on, or auto",
            flags.accumulate);
  }
  expect_valid("--accumulate", memory);
  return memory;
}

MemoryFlags memory_flags(const MemoryOptions& options) {
  return {.accumulate = options.accumulate == 0 ? "auto" : std::to_string(options.accumulate),
          .recompute = options.recompute.str(),
          .shard = options.shard,
          .gather_budget = options.gather_bytes == 0 ? std::string("auto")
                                                     : std::to_string(options.gather_bytes) + "B",
          .offload = options.offload == Offload::Optimizer ? "optimizer" : "none",
          .gradient_dtype = !options.gradients                  ? "float32"
                            : *options.gradients == DType::BF16 ? "bfloat16"
                                                                : "float16"};
}

void add_tls(Command app, TlsFiles& tls) {
  app.add_option("--tls-cert", tls.certificate,
                 "of several workers: the certificate that this process shows (LOCKSTEP_TLS_CERT)");
  app.add_option("--tls-key", tls.key, "its private key (LOCKSTEP_TLS_KEY)");
  app.add_option("--tls-ca", tls.authority,
                 "the authority that signed the certificates of all (LOCKSTEP_TLS_CA)");
}

TlsFiles tls_of(const TlsFiles& flags) {
  if (flags.empty()) return job_tls();
  const std::pair<const char*, const std::string*> parts[] = {{"--tls-cert", &flags.certificate},
                                                              {"--tls-key", &flags.key},
                                                              {"--tls-ca", &flags.authority}};
  for (const auto& [name, value] : parts) {
    require(!value->empty(), "{} is missing: TLS needs --tls-cert, --tls-key and --tls-ca", name);
  }
  return flags;
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
  if (placement.cores > 0) {
    use_cores(placement.cores);
  } else if (!is_one_of_several(placement)) {
    use_granted_cores();  // workers divide them
  }
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
    if (devices.empty() && placement.cores > 0) devices = default_devices(placement, most);
    if (!devices.empty()) devices.resize(static_cast<std::size_t>(replicas));
    const std::chrono::duration<double> silence(placement.heartbeat_timeout);
    const std::chrono::duration<double> progress(placement.progress_timeout);
    return MultiWorkerMirroredStrategy(
        {.devices = devices,
         .replicas = placement.replicas.empty() ? 0 : replicas,
         .balance = balance,
         .cuda = cuda,
         .on_failure = on_failure_by_name(placement.on_failure),
         .heartbeat_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(silence),
         .progress_timeout = std::chrono::duration_cast<std::chrono::milliseconds>(progress),
         .tls = tls_of(placement.tls),
         .ports = placement.port_range.empty()
                      ? PortRange{}
                      : parse_port_range(placement.port_range, "--port-range")});
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
