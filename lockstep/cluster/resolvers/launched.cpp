#include "lockstep/cluster/resolvers/launched.h"

#include <charconv>

#include "lockstep/base/error.h"
#include "lockstep/cluster/address.h"
#include "lockstep/cluster/resolvers/node_list.h"

namespace lockstep {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

// FNV-1a: the same on every machine.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  return hash;
}

}  // namespace

ClusterSpec numbered(const Environment& environment, std::string started_by,
                     const NumberVariables& names) {
  const auto worker = environment.find_number(names.worker, 0, kMaxWorkers - 1);
  const auto workers = environment.find_number(names.workers, 1, kMaxWorkers);
  require(workers.has_value(), "{}={}, but {} is not set: set it to the number of workers",
          names.worker, worker.value_or(0), names.workers);
  require(worker.has_value(),
          "{}={}, but {} is not set: give each worker a number of its own, from 0", names.workers,
          *workers, names.worker);
  require(*worker < *workers,
          "{}={}, but {}={}: workers are numbered from 0 to {}; correct one of the two",
          names.worker, *worker, names.workers, *workers, *workers - 1);
  ClusterSpec spec{.started_by = std::move(started_by),
                   .role = *worker == 0 ? Role::Chief : Role::Worker,
                   .worker = *worker,
                   .workers = *workers,
                   .serves_control = *worker == 0 && *workers > 1};
  set_local(spec, environment.find_number(names.local_worker, 0, kMaxWorkers - 1),
            environment.find_number(names.local_workers, 1, kMaxWorkers));
  return spec;
}

void set_local(ClusterSpec& spec, std::optional<int> local_worker,
               std::optional<int> local_workers) {
  if (spec.workers == 1) {
    local_worker = local_worker.value_or(0);
    local_workers = local_workers.value_or(1);
  }
  if (local_worker) {
    const int most = local_workers.value_or(spec.workers);
    require(*local_worker < most,
            "{}: worker {} of {} cannot be number {} of {} on its host: correct the local numbers, "
            "or unset them",
            spec.started_by, spec.worker, spec.workers, *local_worker, most);
  }
  require(local_workers.value_or(1) <= spec.workers,
          "{}: {} workers on this host, but {} in all: correct one of the two", spec.started_by,
          local_workers.value_or(1), spec.workers);
  spec.local_worker = local_worker.value_or(-1);
  spec.local_workers = local_workers.value_or(-1);
}

bool on_one_host(const ClusterSpec& spec) {
  return spec.local_workers == spec.workers;
}

std::uint16_t hashed_port(std::string_view job) {
  return static_cast<std::uint16_t>(15000 + hash_of(job) % 17000);
}

void set_control(ClusterSpec& spec, const Environment& environment, const ControlPlace& place) {
  if (spec.workers == 1) return;
  std::optional<std::string> host = place.host;
  if (on_one_host(spec)) host = kLoopback;
  if (const auto given = environment.find("MASTER_ADDR")) host = parse_host(*given, "MASTER_ADDR");
  require(host.has_value(),
          "{}: {} workers, but MASTER_ADDR is not set: set it to the host of worker 0, on all "
          "workers",
          spec.started_by, spec.workers);
  std::optional<std::uint16_t> port = place.port;
  if (const auto given = environment.find("MASTER_PORT")) port = parse_port(*given, "MASTER_PORT");
  require(
      port.has_value(),
      "{}: {} workers, but MASTER_PORT is not set: set it to a port that is free on the host of "
      "worker 0, on all workers",
      spec.started_by, spec.workers);
  spec.control_address = Address{.host = *host, .port = *port}.text();
}

std::optional<std::string> first_allocated_node(const Environment& environment) {
  const auto nodes = environment.find("SLURM_JOB_NODELIST");
  if (!nodes) return std::nullopt;
  return expand_node_list(*nodes, "SLURM_JOB_NODELIST").front();
}

bool in_slurm_step(const Environment& environment) {
  // From here on up they are not steps of srun: the batch script, the shell of salloc, and others.
  constexpr std::uint64_t kFirstSpecialStep = 0xfffffff0U;
  auto text = environment.find("SLURM_STEP_ID");
  if (!text) text = environment.find("SLURM_STEPID");
  if (!text || !environment.has("SLURM_PROCID")) return false;
  std::uint64_t step = 0;
  const char* const end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, step);
  return error == std::errc() && stop == end && step < kFirstSpecialStep;
}

}  // namespace lockstep
