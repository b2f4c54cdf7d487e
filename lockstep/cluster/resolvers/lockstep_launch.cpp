// What `lockstep launch` sets for its workers.
#include "lockstep/base/error.h"
#include "lockstep/cluster/address.h"
#include "lockstep/cluster/etcd/etcd_address.h"
#include "lockstep/cluster/in_quotes.h"
#include "lockstep/cluster/resolvers.h"
#include "lockstep/cluster/resolvers/launched.h"

namespace lockstep {
namespace {

Role launched_role(const Environment& environment, int worker) {
  const auto text = environment.find("LOCKSTEP_ROLE");
  if (!text) return worker == 0 ? Role::Chief : Role::Worker;
  if (*text == "evaluator") return Role::Evaluator;
  if (*text == "ps") return Role::ParameterServer;
  require(*text == "chief" || *text == "worker",
          "LOCKSTEP_ROLE={} is not a role: give chief, worker, evaluator or ps", in_quotes(*text));
  require(*text == "worker" || worker == 0,
          "LOCKSTEP_ROLE=chief, but LOCKSTEP_WORKER={}: the chief is worker 0", worker);
  return worker == 0 ? Role::Chief : Role::Worker;
}

// Evaluators and parameter servers are numbered apart from the workers.
ClusterSpec launched_beside(const Environment& environment, std::string started_by, Role role) {
  const auto index = environment.find_number("LOCKSTEP_WORKER", 0, kMaxWorkers - 1);
  const auto workers = environment.find_number("LOCKSTEP_WORKERS", 1, kMaxWorkers);
  require(workers.has_value(),
          "LOCKSTEP_WORKER={}, but LOCKSTEP_WORKERS is not set: set it to the number of workers",
          index.value_or(0));
  return {.started_by = std::move(started_by),
          .role = role,
          .worker = index.value_or(0),
          .workers = *workers};
}

}  // namespace

std::optional<ClusterSpec> LockstepResolver::resolve() const {
  const auto worker = environment_.find_number("LOCKSTEP_WORKER", 0, kMaxWorkers - 1);
  // An evaluator may be started by hand, without a launcher that numbers it.
  if (!worker && environment_.find("LOCKSTEP_ROLE") == "evaluator") {
    return ClusterSpec{.started_by = "LOCKSTEP_ROLE", .role = Role::Evaluator};
  }
  if (!worker) return std::nullopt;
  const Role role = launched_role(environment_, *worker);
  const bool beside = role == Role::Evaluator || role == Role::ParameterServer;
  ClusterSpec spec = beside ? launched_beside(environment_, name(), role)
                            : numbered(environment_, name(),
                                       {.worker = "LOCKSTEP_WORKER",
                                        .workers = "LOCKSTEP_WORKERS",
                                        .local_worker = "LOCKSTEP_LOCAL_WORKER",
                                        .local_workers = "LOCKSTEP_LOCAL_WORKERS"});
  spec.serves_control = false;
  spec.can_restart = spec.can_shrink = true;
  spec.cores = environment_.find_number("LOCKSTEP_CORES", 1, kMaxWorkers).value_or(0);
  if (role == Role::Evaluator) return spec;
  if (const auto control = environment_.find("LOCKSTEP_CONTROL")) {
    spec.control_address =
        is_etcd_address(*control) ? *control : parse_address(*control, "LOCKSTEP_CONTROL").text();
  }
  const bool needed = spec.workers > 1 || role == Role::ParameterServer;
  require(!needed || !spec.control_address.empty(),
          "LOCKSTEP_WORKERS={}, but LOCKSTEP_CONTROL is not set: set it to the launcher's address, "
          "host:port",
          spec.workers);
  return spec;
}

}  // namespace lockstep
