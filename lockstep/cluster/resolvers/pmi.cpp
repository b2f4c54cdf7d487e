// What the mpiexec of MPICH and of Intel MPI (Hydra) sets for its processes.
#include "lockstep/cluster/resolvers.h"
#include "lockstep/cluster/resolvers/launched.h"

namespace lockstep {

std::optional<ClusterSpec> PmiResolver::resolve() const {
  if (!environment_.has("PMI_RANK")) return std::nullopt;
  if (in_slurm_step(environment_) && !environment_.has("MPI_LOCALRANKID")) return std::nullopt;
  ClusterSpec spec = numbered(environment_, name(),
                              {.worker = "PMI_RANK",
                               .workers = "PMI_SIZE",
                               .local_worker = "MPI_LOCALRANKID",
                               .local_workers = "MPI_LOCALNRANKS"});
  ControlPlace place{.port = kDefaultControlPort};
  if (spec.workers > 1 && !on_one_host(spec)) place.host = first_allocated_node(environment_);
  set_control(spec, environment_, place);
  return spec;
}

}  // namespace lockstep
