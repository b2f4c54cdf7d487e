// What Open MPI's mpirun sets for its processes.
#include "lockstep/base/error.h"
#include "lockstep/cluster/address.h"
#include "lockstep/cluster/resolvers.h"
#include "lockstep/cluster/resolvers/launched.h"

namespace lockstep {
namespace {

// The first host in mpirun's address: "1200095232.0;tcp://192.0.2.2,10.0.0.2:53957;tcp6://…".
std::optional<std::string> host_of_mpirun(const Environment& environment) {
  constexpr std::string_view kScheme = "tcp://";
  const auto uri = environment.find("OMPI_MCA_orte_hnp_uri");
  if (!uri) return std::nullopt;
  const auto begin = uri->find(kScheme);
  if (begin == std::string::npos) return std::nullopt;
  const std::string rest = uri->substr(begin + kScheme.size());
  return parse_host(rest.substr(0, rest.find_first_of(",:;")), "OMPI_MCA_orte_hnp_uri");
}

}  // namespace

std::optional<ClusterSpec> OpenMpiResolver::resolve() const {
  if (!environment_.has("OMPI_COMM_WORLD_RANK")) return std::nullopt;
  ClusterSpec spec = numbered(environment_, name(),
                              {.worker = "OMPI_COMM_WORLD_RANK",
                               .workers = "OMPI_COMM_WORLD_SIZE",
                               .local_worker = "OMPI_COMM_WORLD_LOCAL_RANK",
                               .local_workers = "OMPI_COMM_WORLD_LOCAL_SIZE"});
  ControlPlace place;
  if (const auto job = environment_.find("PMIX_NAMESPACE")) place.port = hashed_port(*job);
  if (spec.workers > 1 && !on_one_host(spec) && !environment_.has("MASTER_ADDR")) {
    place.host = first_allocated_node(environment_);
    if (!place.host) {
      place.host = host_of_mpirun(environment_);
      if (place.host) {
        spec.remarks.push_back(fmt::format(
            "the workers meet at {}, where mpirun was called: if rank 0 runs on another host, add "
            "-x MASTER_ADDR=<its name> to mpirun's arguments",
            *place.host));
      }
    }
  }
  set_control(spec, environment_, place);
  return spec;
}

}  // namespace lockstep
