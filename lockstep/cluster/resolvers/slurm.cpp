// What Slurm sets for the tasks of a step, for batch scripts and for shells.
#include "lockstep/base/error.h"
#include "lockstep/cluster/address.h"
#include "lockstep/cluster/resolvers.h"
#include "lockstep/cluster/resolvers/launched.h"
#include "lockstep/cluster/resolvers/node_list.h"

namespace lockstep {
namespace {

// The first of two variables that is set; the last one if none is.
std::string_view either(const Environment& environment, std::string_view first,
                        std::string_view second) {
  return environment.has(first) ? first : second;
}

// A batch script or a shell of salloc: one process, of which the job may have tasks for several.
std::optional<ClusterSpec> outside_a_step(const Environment& environment, std::string started_by) {
  const int tasks = environment.find_number("SLURM_NTASKS", 1, kMaxWorkers).value_or(1);
  if (tasks == 1) return std::nullopt;
  return ClusterSpec{.started_by = std::move(started_by),
                     .local_worker = 0,
                     .local_workers = 1,
                     .remarks = {fmt::format(
                         "Slurm's job has {} tasks, but this process was not started by srun and "
                         "trains alone: start it with srun to train with {} workers",
                         tasks, tasks)}};
}

// How many tasks this task's node has.
std::optional<int> tasks_of_this_node(const Environment& environment) {
  const std::string_view name =
      either(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  const auto text = environment.find(name);
  const auto node = environment.find_number("SLURM_NODEID", 0, static_cast<int>(kMaxNodes) - 1);
  if (!text || !node) return std::nullopt;
  const std::vector<int> tasks = expand_tasks_per_node(*text, name);
  require(static_cast<std::size_t>(*node) < tasks.size(),
          "SLURM_NODEID={}, but {}={} has {} nodes: nodes are numbered from 0; correct one of the "
          "two",
          *node, name, *text, tasks.size());
  return tasks[static_cast<std::size_t>(*node)];
}

std::uint16_t port_of_step(const Environment& environment) {
  if (const auto ports = environment.find("SLURM_STEP_RESV_PORTS")) {  // "12000-12003,12007"
    return parse_port(ports->substr(0, ports->find_first_of("-,")), "SLURM_STEP_RESV_PORTS");
  }
  const auto job = environment.find(either(environment, "SLURM_JOB_ID", "SLURM_JOBID"));
  const auto step = environment.find(either(environment, "SLURM_STEP_ID", "SLURM_STEPID"));
  return hashed_port(fmt::format("{}.{}", job.value_or(""), step.value_or("")));
}

}  // namespace

std::optional<ClusterSpec> SlurmResolver::resolve() const {
  if (!environment_.has(either(environment_, "SLURM_JOB_ID", "SLURM_JOBID"))) return std::nullopt;
  if (!in_slurm_step(environment_)) return outside_a_step(environment_, name());
  ClusterSpec spec =
      numbered(environment_, name(),
               {.worker = "SLURM_PROCID",
                .workers = either(environment_, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")});
  set_local(spec, environment_.find_number("SLURM_LOCALID", 0, kMaxWorkers - 1),
            tasks_of_this_node(environment_));
  spec.cores = environment_.find_number("SLURM_CPUS_PER_TASK", 1, kMaxWorkers).value_or(0);
  spec.can_shrink = true;
  ControlPlace place{.port = port_of_step(environment_)};
  const std::string_view list = either(environment_, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST");
  if (const auto nodes = environment_.find(list)) {
    place.host = expand_node_list(*nodes, list).front();
  }
  set_control(spec, environment_, place);
  return spec;
}

}  // namespace lockstep
