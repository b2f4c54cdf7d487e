// Which launchers and transports can do what about a failure, and what is refused.
#include "lockstep/cluster/failure_policy.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/cluster/resolvers.h"

namespace lockstep {
namespace {

// A launcher, by what it sets.
struct Launcher {
  const char* name;
  Environment environment;
  bool restart = false;
  bool shrink = false;
};

const Launcher kLaunchers[] = {
    {"lockstep launch",
     {{"LOCKSTEP_WORKER", "1"}, {"LOCKSTEP_WORKERS", "2"}, {"LOCKSTEP_CONTROL", "127.0.0.1:5"}},
     true,
     true},
    {"Kubernetes",
     {{"JOB_COMPLETION_INDEX", "1"}, {"LOCKSTEP_WORKERS", "2"}, {"MASTER_ADDR", "127.0.0.1"}},
     true,
     true},
    {"TF_CONFIG",
     {{"TF_CONFIG",
       R"({"cluster": {"worker": ["127.0.0.1:5", "127.0.0.1:6"]},
           "task": {"type": "worker", "index": 1}})"}},
     true,
     true},
    {"plain",
     {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "5"}},
     true,
     true},
    {"torchrun",
     {{"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "5"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
     false,
     false},
    {"srun",
     {{"SLURM_JOB_ID", "7"},
      {"SLURM_STEP_ID", "0"},
      {"SLURM_PROCID", "1"},
      {"SLURM_STEP_NUM_TASKS", "2"},
      {"SLURM_LOCALID", "1"},
      {"SLURM_STEP_TASKS_PER_NODE", "2"},
      {"SLURM_STEP_NODELIST", "n1"}},
     false,
     true},
    {"mpirun",
     {{"OMPI_COMM_WORLD_RANK", "1"},
      {"OMPI_COMM_WORLD_SIZE", "2"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
      {"PMIX_NAMESPACE", "7"}},
     false,
     false},
    {"mpiexec",
     {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}},
     false,
     false},
};

ClusterSpec spec_of(const Launcher& launcher) {
  return default_resolver(launcher.environment)->resolve().value();
}

std::string refusal(const ClusterSpec& spec, OnFailure policy, Transport transport) {
  try {
    EXPECT_EQ(failure_policy(spec, policy, transport, {}), policy);
    return "";
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(FailurePolicy, EveryLauncherCanDoWhatTheTableSays) {
  for (const Launcher& launcher : kLaunchers) {
    const ClusterSpec spec = spec_of(launcher);
    EXPECT_EQ(spec.workers, 2) << launcher.name;
    EXPECT_EQ(refusal(spec, OnFailure::Stop, Transport::Auto), "") << launcher.name;
    EXPECT_EQ(refusal(spec, OnFailure::Restart, Transport::Auto).empty(), launcher.restart)
        << launcher.name;
    EXPECT_EQ(refusal(spec, OnFailure::Shrink, Transport::Auto).empty(), launcher.shrink)
        << launcher.name;
  }
}

TEST(FailurePolicy, OverMpiAllEndTogether) {
  const ClusterSpec spec = spec_of(kLaunchers[0]);
  EXPECT_EQ(refusal(spec, OnFailure::Stop, Transport::Mpi), "");
  for (const OnFailure policy : {OnFailure::Restart, OnFailure::Shrink}) {
    EXPECT_NE(refusal(spec, policy, Transport::Mpi).find("MPI"), std::string::npos);
  }
}

TEST(FailurePolicy, IsThatOfTheEnvironmentUnlessOneIsAskedFor) {
  const ClusterSpec spec = spec_of(kLaunchers[0]);
  const Environment shrink{{"LOCKSTEP_ON_FAILURE", "shrink"}};
  EXPECT_EQ(failure_policy(spec, {}, Transport::Auto, shrink), OnFailure::Shrink);
  EXPECT_EQ(failure_policy(spec, OnFailure::Stop, Transport::Auto, shrink), OnFailure::Stop);
  EXPECT_EQ(failure_policy(spec, {}, Transport::Auto, {}), OnFailure::Stop);
  EXPECT_THROW(
      failure_policy(spec, {}, Transport::Auto, Environment{{"LOCKSTEP_ON_FAILURE", "retry"}}),
      UsageError);
}

}  // namespace
}  // namespace lockstep
