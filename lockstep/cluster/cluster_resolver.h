// ClusterResolver: finds out this process's place in a job. Ready ones read what launchers leave in
// the environment (resolvers.h); users write their own for what no launcher says:
//
//   struct Mine : ls::ClusterResolver {
//     std::string name() const override { return "my scheduler"; }
//     std::optional<ls::ClusterSpec> resolve() const override { … }
//   };
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cluster/cluster_spec.h"
#include "lockstep/cluster/environment.h"

namespace lockstep {

class ClusterResolver {
 public:
  virtual ~ClusterResolver() = default;
  // For messages: "Slurm".
  virtual std::string name() const = 0;
  // This process's place; nothing if it was not started in the way that this resolver knows.
  // UsageError if it was, but what is said about the job is wrong or incomplete.
  virtual std::optional<ClusterSpec> resolve() const = 0;
};

// Asks several resolvers; the first with an answer wins, and the later ones are not asked.
class FirstOfResolvers : public ClusterResolver {
 public:
  explicit FirstOfResolvers(std::vector<std::shared_ptr<const ClusterResolver>> resolvers);
  std::string name() const override;
  std::optional<ClusterSpec> resolve() const override;

 private:
  std::vector<std::shared_ptr<const ClusterResolver>> resolvers_;
};

// All resolvers of resolvers.h, in an order in which whatever started this process last wins:
//   1. `lockstep launch`
//   2. TF_CONFIG
//   3. plain variables (RANK, WORLD_SIZE), which torchrun sets, too
//   4. Open MPI: mpirun in an allocation of Slurm is Open MPI
//   5. PMI (MPICH, Intel MPI), but not where srun sets its variables
//   6. a Kubernetes Job
//   7. Slurm
// Without any of these, the job has one worker: its resolve() always answers.
std::unique_ptr<ClusterResolver> default_resolver(Environment environment = process_environment());

}  // namespace lockstep
