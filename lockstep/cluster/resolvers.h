// The ready resolvers: what each launcher leaves in the environment, and what it means here. A
// variable that is empty counts as not set.
//
// In all of them worker 0 is the chief. Unless said otherwise, the chief serves the control plane
// if there are several workers; all workers must get the same address for it:
// - MASTER_ADDR and MASTER_PORT win where they are set, each for its half;
// - otherwise the host is 127.0.0.1 if all workers are on one host;
// - otherwise the port is 15000 + hash % 17000 of the launcher's number for the job: below the
// ports
//   that Linux gives to connections (32768), and another one for each of several jobs on a host,
//   most likely.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "lockstep/cluster/cluster_resolver.h"

namespace lockstep {

class EnvironmentResolver : public ClusterResolver {
 public:
  explicit EnvironmentResolver(Environment environment) : environment_(std::move(environment)) {}

 protected:
  Environment environment_;
};

// `lockstep launch`: LOCKSTEP_WORKER (by which it is recognised), LOCKSTEP_WORKERS,
// LOCKSTEP_CONTROL (host:port, or etcd://host:port), LOCKSTEP_LOCAL_WORKER, LOCKSTEP_LOCAL_WORKERS,
// LOCKSTEP_CORES (how many), LOCKSTEP_ROLE (chief, worker, evaluator or ps; without it a worker, of
// which 0 is the chief). The launcher serves the control plane, so that MASTER_ADDR and MASTER_PORT
// are not read. LOCKSTEP_ROLE=evaluator is enough by itself: an evaluator is outside the job.
class LockstepResolver : public EnvironmentResolver {
 public:
  explicit LockstepResolver(Environment environment = process_environment())
      : EnvironmentResolver(std::move(environment)) {}
  std::string name() const override { return "lockstep launch"; }
  std::optional<ClusterSpec> resolve() const override;
};

// TF_CONFIG, as TensorFlow reads it:
//   {"cluster": {"chief": ["a:5000"], "worker": ["b:5000", "c:5000"], "ps": ["d:5000"]},
//    "task": {"type": "worker", "index": 1}}
// "master" is an old name of "chief". Without a chief, worker 0 is the chief. Workers are numbered
// chief first: with a chief, {"type": "worker", "index": 1} is worker 2. An evaluator need not be
// in the cluster, and has no control plane. Without a cluster, nothing is said. The control plane
// is at the chief's address. Addresses with the same host are of the same host.
class TFConfigResolver : public EnvironmentResolver {
 public:
  explicit TFConfigResolver(Environment environment = process_environment())
      : EnvironmentResolver(std::move(environment)) {}
  std::string name() const override { return "TF_CONFIG"; }
  std::optional<ClusterSpec> resolve() const override;
};

// RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, and optionally LOCAL_RANK and LOCAL_WORLD_SIZE: set
// by hand, by torchrun, or by Kubernetes's PyTorchJob. torchrun's agent itself listens on
// MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE=True); the port is then a hash of it and of
// TORCHELASTIC_RUN_ID. If only one of RANK and WORLD_SIZE is set, another launcher's variables
// count, if there are any: scripts for Slurm often export WORLD_SIZE alone.
class PlainResolver : public EnvironmentResolver {
 public:
  explicit PlainResolver(Environment environment = process_environment())
      : EnvironmentResolver(std::move(environment)) {}
  std::string name() const override { return "RANK and WORLD_SIZE"; }
  std::optional<ClusterSpec> resolve() const override;
};

// Open MPI's mpirun: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE. On several hosts, the
// control plane is on the first node of Slurm's allocation, or, without Slurm, on the host of
// mpirun (OMPI_MCA_orte_hnp_uri of Open MPI 4, with a remark), where rank 0 runs unless hosts are
// listed in another order. The hash is that of PMIX_NAMESPACE.
class OpenMpiResolver : public EnvironmentResolver {
 public:
  explicit OpenMpiResolver(Environment environment = process_environment())
      : EnvironmentResolver(std::move(environment)) {}
  std::string name() const override { return "Open MPI"; }
  std::optional<ClusterSpec> resolve() const override;
};

// MPICH's and Intel MPI's mpiexec: PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS. On several
// hosts, the control plane is on the first node of Slurm's allocation or at MASTER_ADDR. They give
// a job no number: the port is MASTER_PORT or kDefaultControlPort. Where srun sets PMI_RANK (then
// MPI_LOCALRANKID is not set, but SLURM_STEP_ID is), Slurm's variables say the same and more, and
// this resolver does not answer.
class PmiResolver : public EnvironmentResolver {
 public:
  explicit PmiResolver(Environment environment = process_environment())
      : EnvironmentResolver(std::move(environment)) {}
  std::string name() const override { return "PMI"; }
  std::optional<ClusterSpec> resolve() const override;
};

// A Kubernetes Job with completionMode: Indexed: JOB_COMPLETION_INDEX, which Kubernetes sets, and
// in the pod's template LOCKSTEP_WORKERS (the Job's completions, and its parallelism) and
// MASTER_ADDR, the name of pod 0: "<job>-0.<service>" with a headless service as the pods'
// subdomain. MASTER_PORT is kDefaultControlPort unless set. Without LOCKSTEP_WORKERS the pods are
// jobs of their own.
class KubernetesResolver : public EnvironmentResolver {
 public:
  explicit KubernetesResolver(Environment environment = process_environment())
      : EnvironmentResolver(std::move(environment)) {}
  std::string name() const override { return "Kubernetes"; }
  std::optional<ClusterSpec> resolve() const override;
};

// A step of Slurm, as srun starts it: SLURM_PROCID, SLURM_STEP_NUM_TASKS (or SLURM_NTASKS),
// SLURM_LOCALID, SLURM_NODEID, SLURM_STEP_TASKS_PER_NODE, SLURM_STEP_NODELIST (or
// SLURM_JOB_NODELIST), SLURM_CPUS_PER_TASK. On several nodes, the control plane is on the first
// node of the step. The port is the first of SLURM_STEP_RESV_PORTS, otherwise hashed from
// SLURM_JOB_ID and SLURM_STEP_ID. In a batch script or in a shell of salloc only one process runs,
// whatever SLURM_NTASKS says: it is one worker, with a remark if the job has more tasks.
class SlurmResolver : public EnvironmentResolver {
 public:
  explicit SlurmResolver(Environment environment = process_environment())
      : EnvironmentResolver(std::move(environment)) {}
  std::string name() const override { return "Slurm"; }
  std::optional<ClusterSpec> resolve() const override;
};

inline constexpr int kDefaultControlPort = 14990;

}  // namespace lockstep
