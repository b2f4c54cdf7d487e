// RANK and WORLD_SIZE, set by hand or by torchrun.
#include "lockstep/base/error.h"
#include "lockstep/cluster/address.h"
#include "lockstep/cluster/resolvers.h"
#include "lockstep/cluster/resolvers/launched.h"

namespace lockstep {
namespace {

bool another_launcher(const Environment& environment) {
  return environment.has("OMPI_COMM_WORLD_RANK") || environment.has("PMI_RANK") ||
         environment.has("SLURM_JOB_ID") || environment.has("JOB_COMPLETION_INDEX");
}

// A port beside MASTER_PORT, on which torchrun's agent listens.
std::uint16_t port_beside(const Environment& environment) {
  const std::uint16_t taken =
      parse_port(environment.find("MASTER_PORT").value_or(""), "MASTER_PORT");
  const std::string run = environment.find("TORCHELASTIC_RUN_ID").value_or("");
  const std::uint16_t port = hashed_port(fmt::format("{}:{}", run, taken));
  return port == taken ? static_cast<std::uint16_t>(port + 1) : port;
}

}  // namespace

std::optional<ClusterSpec> PlainResolver::resolve() const {
  const bool rank = environment_.has("RANK");
  const bool size = environment_.has("WORLD_SIZE");
  if (!rank && !size) return std::nullopt;
  if (rank != size && another_launcher(environment_)) return std::nullopt;
  ClusterSpec spec = numbered(environment_, name(),
                              {.worker = "RANK",
                               .workers = "WORLD_SIZE",
                               .local_worker = "LOCAL_RANK",
                               .local_workers = "LOCAL_WORLD_SIZE"});
  const bool torchrun = environment_.find("TORCHELASTIC_USE_AGENT_STORE") == "True";
  if (torchrun) spec.started_by = "torchrun";
  spec.can_restart = spec.can_shrink = !torchrun;
  if (spec.workers == 1) return spec;
  set_control(spec, environment_, {});
  if (torchrun) {
    Address address = parse_address(spec.control_address, "MASTER_ADDR");
    address.port = port_beside(environment_);
    spec.control_address = address.text();
  }
  return spec;
}

}  // namespace lockstep
