// An indexed Job of Kubernetes.
#include "lockstep/base/error.h"
#include "lockstep/cluster/resolvers.h"
#include "lockstep/cluster/resolvers/launched.h"

namespace lockstep {

std::optional<ClusterSpec> KubernetesResolver::resolve() const {
  if (!environment_.has("JOB_COMPLETION_INDEX")) return std::nullopt;
  if (!environment_.has("LOCKSTEP_WORKERS")) {
    const auto address = environment_.find("MASTER_ADDR");
    require(
        !address,
        "JOB_COMPLETION_INDEX and MASTER_ADDR={} are set, but LOCKSTEP_WORKERS is not: set it to "
        "the Job's completions in the pod's template",
        address.value_or(""));
    return std::nullopt;
  }
  ClusterSpec spec = numbered(environment_, name(),
                              {.worker = "JOB_COMPLETION_INDEX", .workers = "LOCKSTEP_WORKERS"});
  spec.can_restart = spec.can_shrink = true;
  set_control(spec, environment_, {.port = kDefaultControlPort});
  return spec;
}

}  // namespace lockstep
