// What launchers set, and what the resolvers make of it; which wins if several have set something.
#include <gtest/gtest.h>

#include <vector>

#include "cluster/resolved.h"
#include "lockstep/cluster/address.h"
#include "lockstep/cluster/resolvers.h"

namespace lockstep {
namespace {

using Variables = std::map<std::string, std::string>;

Environment joined(const std::vector<Variables>& parts) {
  Variables all;
  for (const Variables& part : parts) {
    for (const auto& [name, value] : part) all[name] = value;
  }
  return Environment(all);
}

// Task 2 of `srun -N2 -n4 -c8`, 2 tasks per node.
const Variables kSrun = {{"SLURM_JOB_ID", "4711"},
                         {"SLURM_STEP_ID", "0"},
                         {"SLURM_PROCID", "2"},
                         {"SLURM_NTASKS", "4"},
                         {"SLURM_STEP_NUM_TASKS", "4"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"},
                         {"SLURM_JOB_NODELIST", "n[06-08]"},
                         {"SLURM_STEP_NODELIST", "n[07-08]"},
                         {"SLURM_CPUS_PER_TASK", "8"},
                         {"SLURM_STEP_RESV_PORTS", "12005-12006"}};
// `sbatch -n4`'s script, and the shell of `salloc -n4`.
const Variables kBatch = {
    {"SLURM_JOB_ID", "4711"},         {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"},
    {"SLURM_LOCALID", "0"},           {"SLURM_NODEID", "0"}, {"SLURM_JOB_NODELIST", "n[06-08]"},
    {"SLURM_TASKS_PER_NODE", "2(x2)"}};
const Variables kSalloc = {{"SLURM_JOB_ID", "4711"},
                           {"SLURM_NTASKS", "4"},
                           {"SLURM_JOB_NODELIST", "n[06-08]"},
                           {"SLURM_TASKS_PER_NODE", "2(x2)"}};
const Variables kOneHostMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"PMIX_NAMESPACE", "1200095233"},    {"PMIX_RANK", "1"}};
const Variables kMpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                        {"OMPI_COMM_WORLD_SIZE", "4"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"PMIX_NAMESPACE", "1200095233"},
                        {"OMPI_MCA_orte_hnp_uri",
                         "1200095232.0;tcp://192.0.2.2,10.0.0.2:53957;tcp6://[fd00::2]:34791"}};
const Variables kTorchrun = {{"RANK", "3"},
                             {"WORLD_SIZE", "4"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "2"},
                             {"GROUP_RANK", "1"},
                             {"MASTER_ADDR", "n1"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RUN_ID", "none"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Variables kHydra = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables kPlain = {
    {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "n1"}, {"MASTER_PORT", "5000"}};
const Variables kLaunch = {{"LOCKSTEP_WORKER", "1"},        {"LOCKSTEP_WORKERS", "2"},
                           {"LOCKSTEP_CONTROL", "n0:77"},   {"LOCKSTEP_LOCAL_WORKER", "1"},
                           {"LOCKSTEP_LOCAL_WORKERS", "2"}, {"LOCKSTEP_CORES", "4"}};
const Variables kPod = {
    {"JOB_COMPLETION_INDEX", "1"}, {"LOCKSTEP_WORKERS", "2"}, {"MASTER_ADDR", "train-0.train"}};
const Variables kTfConfig = {
    {"TF_CONFIG",
     R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})"}};

std::string with(Variables variables, const Variables& changes) {
  return found_in(joined({std::move(variables), changes}));
}

Address control_of(const Variables& variables) {
  return parse_address(default_resolver(Environment(variables))->resolve()->control_address, "X");
}

TEST(Launchers, NothingSetIsOneWorker) {
  EXPECT_EQ(found_in({}), "this process alone: chief 0 of 1, local 0 of 1");
  EXPECT_EQ(found_in({{"RANK", ""}, {"TF_CONFIG", ""}}),
            "this process alone: chief 0 of 1, local 0 of 1");
}

TEST(Launchers, EachIsUnderstood) {
  EXPECT_EQ(found_in(Environment(kSrun)),
            "Slurm: worker 2 of 4 at n07:12005, local 0 of 2, 8 cores");
  EXPECT_EQ(found_in(Environment(kPlain)), "RANK and WORLD_SIZE: chief 0 of 2 serves n1:5000");
  EXPECT_EQ(found_in(Environment(kLaunch)),
            "lockstep launch: worker 1 of 2 at n0:77, local 1 of 2, 4 cores");
  EXPECT_EQ(found_in(Environment(kPod)), "Kubernetes: worker 1 of 2 at train-0.train:14990");
  expect_all_in(found_in(Environment(kOneHostMpi)),
                {"Open MPI: worker 1 of 2 at 127.0.0.1:", ", local 1 of 2"});
  expect_all_in(found_in(Environment(kMpi)),
                {"Open MPI: worker 3 of 4 at 192.0.2.2:", ", local 1 of 2"});
  expect_all_in(found_in(Environment(kTorchrun)),
                {"torchrun: worker 3 of 4 at n1:", ", local 1 of 2"});
  EXPECT_EQ(with(kHydra, {{"PMI_SIZE", "2"}}),
            "PMI: worker 1 of 2 at 127.0.0.1:14990, local 1 of 2");
  EXPECT_EQ(with(kHydra, {{"MASTER_ADDR", "::1"}, {"MASTER_PORT", "5"}}),
            "PMI: worker 1 of 4 at [::1]:5, local 1 of 2");
}

TEST(Launchers, OneWorkerNeedsNoAddress) {
  EXPECT_EQ(found_in({{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
            "RANK and WORLD_SIZE: chief 0 of 1, local 0 of 1");
  EXPECT_EQ(found_in({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}),
            "Open MPI: chief 0 of 1, local 0 of 1");
  EXPECT_EQ(found_in({{"LOCKSTEP_WORKER", "0"}, {"LOCKSTEP_WORKERS", "1"}}),
            "lockstep launch: chief 0 of 1, local 0 of 1");
}

TEST(Launchers, AllWorkersGetTheSamePortAndOtherJobsAnother) {
  for (const Variables& job : {kOneHostMpi, kTorchrun}) {
    const Address address = control_of(job);
    EXPECT_GE(address.port, 15000);
    EXPECT_LT(address.port, 32000);
  }
  Variables other = kOneHostMpi;
  other["OMPI_COMM_WORLD_RANK"] = other["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  EXPECT_EQ(control_of(other), control_of(kOneHostMpi));
  other["PMIX_NAMESPACE"] = "1200095234";
  EXPECT_NE(control_of(other), control_of(kOneHostMpi));

  Variables srun = kSrun;
  srun.erase("SLURM_STEP_RESV_PORTS");
  const Address step0 = control_of(srun);
  EXPECT_EQ(step0.host, "n07");
  srun["SLURM_STEP_ID"] = "1";
  EXPECT_NE(control_of(srun).port, step0.port);
}

TEST(Launchers, TorchrunsAgentKeepsItsPort) {
  EXPECT_NE(control_of(kTorchrun).port, 29500);
  EXPECT_EQ(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}),
            "RANK and WORLD_SIZE: worker 3 of 4 at n1:29500, local 1 of 2");
}

TEST(Launchers, MasterAddressAndPortWin) {
  EXPECT_EQ(with(kMpi, {{"MASTER_ADDR", "n9"}, {"MASTER_PORT", "9"}}),
            "Open MPI: worker 3 of 4 at n9:9, local 1 of 2");
  EXPECT_EQ(with(kSrun, {{"MASTER_ADDR", "n9"}, {"MASTER_PORT", "9"}}),
            "Slurm: worker 2 of 4 at n9:9, local 0 of 2, 8 cores");
  EXPECT_EQ(with(kPod, {{"MASTER_PORT", "9"}}), "Kubernetes: worker 1 of 2 at train-0.train:9");
}

TEST(Launchers, MpirunOnSeveralHostsSaysWhereTheWorkersMeet) {
  const auto spec = default_resolver(Environment(kMpi))->resolve();
  ASSERT_EQ(spec->remarks.size(), 1u);
  expect_all_in(spec->remarks[0], {"192.0.2.2", "-x MASTER_ADDR"});
  EXPECT_TRUE(default_resolver(Environment(kOneHostMpi))->resolve()->remarks.empty());
  // Open MPI 5 does not say where it was called.
  expect_all_in(with(kMpi, {{"OMPI_MCA_orte_hnp_uri", ""}}), {"error: Open MPI", "MASTER_ADDR"});
}

TEST(Launchers, ABatchScriptOrShellOfSlurmIsOneWorkerWithARemark) {
  Variables interactive = kBatch;  // salloc with use_interactive_step
  interactive["SLURM_STEP_ID"] = "4294967290";
  Variables numbered_batch = kBatch;
  numbered_batch["SLURM_STEP_ID"] = "4294967291";
  for (const Variables& variables : {kBatch, kSalloc, interactive, numbered_batch}) {
    const auto spec = default_resolver(Environment(variables))->resolve();
    EXPECT_EQ(spec_text(*spec), "Slurm: chief 0 of 1, local 0 of 1");
    ASSERT_EQ(spec->remarks.size(), 1u);
    expect_all_in(spec->remarks[0], {"4 tasks", "srun"});
  }
  EXPECT_EQ(with(kBatch, {{"SLURM_NTASKS", "1"}}),
            "this process alone: chief 0 of 1, local 0 of 1");
  EXPECT_EQ(with(kBatch, {{"SLURM_NTASKS", ""}}), "this process alone: chief 0 of 1, local 0 of 1");
}

TEST(Launchers, AStepOfFewerTasksThanTheJobCountsItsOwn) {
  EXPECT_EQ(with(kSrun, {{"SLURM_NTASKS", "8"}}),
            "Slurm: worker 2 of 4 at n07:12005, local 0 of 2, 8 cores");
  EXPECT_EQ(with(kSrun, {{"SLURM_PROCID", "0"},
                         {"SLURM_NODEID", "0"},
                         {"SLURM_STEP_NUM_TASKS", "1"},
                         {"SLURM_STEP_TASKS_PER_NODE", "1"},
                         {"SLURM_STEP_NODELIST", "n07"}}),
            "Slurm: chief 0 of 1, local 0 of 1, 8 cores");
}

TEST(Launchers, AnEvaluatorNeedsNoNumber) {
  const std::string expected = "LOCKSTEP_ROLE: evaluator 0 of 1";
  EXPECT_EQ(found_in({{"LOCKSTEP_ROLE", "evaluator"}}), expected);
  // Not even where the same template makes the workers' pods.
  EXPECT_EQ(with(kPod, {{"LOCKSTEP_ROLE", "evaluator"}}), expected);
  EXPECT_EQ(found_in({{"LOCKSTEP_ROLE", "worker"}}),
            "this process alone: chief 0 of 1, local 0 of 1");
}

TEST(Launchers, ALaunchedRoleIsKept) {
  EXPECT_EQ(with(kLaunch, {{"LOCKSTEP_ROLE", "evaluator"}, {"LOCKSTEP_WORKER", "0"}}),
            "lockstep launch: evaluator 0 of 2, 4 cores");
  EXPECT_EQ(with(kLaunch, {{"LOCKSTEP_ROLE", "ps"}, {"LOCKSTEP_WORKER", "3"}}),
            "lockstep launch: ps 3 of 2 at n0:77, 4 cores");
  EXPECT_EQ(with(kLaunch, {{"LOCKSTEP_ROLE", "worker"}, {"LOCKSTEP_WORKER", "0"}}),
            "lockstep launch: chief 0 of 2 at n0:77, local 1 of 2, 4 cores");
}

struct Conflict {
  std::vector<Variables> set;
  const char* winner;
};

TEST(Launchers, WhatStartedTheProcessLastWins) {
  Variables pmi_by_srun = {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"PMI_JOBID", "4711.0"}};
  const Variables half = {{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n07"}, {"MASTER_PORT", "5000"}};
  for (const Conflict& conflict : std::vector<Conflict>{
           {{kSalloc, kMpi}, "Open MPI:"},
           {{kBatch, kMpi}, "Open MPI:"},
           {{kSrun, kMpi}, "Open MPI:"},
           {{kSrun, {{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "slurm.pmix.4711.0"}}}, "Slurm:"},
           {{kSrun, pmi_by_srun}, "Slurm:"},
           {{kSrun, kHydra}, "PMI:"},
           {{kBatch, kHydra}, "PMI:"},
           {{kSrun, kTorchrun}, "torchrun:"},
           {{kSrun, half}, "Slurm: worker 2 of 4 at n07:5000"},
           {{kMpi, half}, "Open MPI: worker 3 of 4 at n07:5000"},
           {{kSrun, kMpi, kTorchrun, kTfConfig}, "TF_CONFIG:"},
           {{kPod, kPlain}, "RANK and WORLD_SIZE:"},
           {{kSrun, kMpi, kHydra, kTorchrun, kTfConfig, kPod, kLaunch}, "lockstep launch:"}}) {
    const std::string text = found_in(joined(conflict.set));
    EXPECT_TRUE(text.starts_with(conflict.winner)) << conflict.winner << " is not in: " << text;
  }
}

TEST(Launchers, PodsThatDoNotSayHowManyTheyAreWorkAlone) {
  EXPECT_EQ(found_in({{"JOB_COMPLETION_INDEX", "1"}}),
            "this process alone: chief 0 of 1, local 0 of 1");
}

struct Wrong {
  Variables variables;
  std::vector<std::string> said;
};

TEST(Launchers, MistakesNameTheVariableItsValueAndWhatToDo) {
  const auto changed = [](Variables variables, const Variables& changes) {
    for (const auto& [name, value] : changes) variables[name] = value;
    return variables;
  };
  for (const Wrong& wrong : std::vector<Wrong>{
           {{{"RANK", "4"}, {"WORLD_SIZE", "4"}}, {"RANK=4", "WORLD_SIZE=4", "from 0 to 3"}},
           {{{"RANK", "1"}}, {"RANK=1", "WORLD_SIZE is not set", "set it"}},
           {{{"WORLD_SIZE", "2"}}, {"WORLD_SIZE=2", "RANK is not set"}},
           {changed(kPlain, {{"RANK", "x"}}), {"RANK='x'", "whole number"}},
           {changed(kPlain, {{"RANK", "-1"}}), {"RANK='-1'"}},
           {changed(kPlain, {{"WORLD_SIZE", "0"}}), {"WORLD_SIZE='0'", "from 1"}},
           {changed(kPlain, {{"WORLD_SIZE", "99999999999"}}), {"WORLD_SIZE='99999999999'"}},
           {changed(kPlain, {{"MASTER_ADDR", ""}}), {"MASTER_ADDR is not set", "worker 0"}},
           {changed(kPlain, {{"MASTER_PORT", ""}}), {"MASTER_PORT is not set", "free"}},
           {changed(kPlain, {{"MASTER_PORT", "70000"}}), {"MASTER_PORT", "'70000'", "65535"}},
           {changed(kPlain, {{"MASTER_ADDR", "a b"}}), {"MASTER_ADDR", "'a b'"}},
           {changed(kPlain, {{"MASTER_ADDR", "n1:5000"}}), {"MASTER_ADDR", "'n1:5000'"}},
           {changed(kTorchrun, {{"LOCAL_RANK", "2"}}), {"worker 3 of 4", "number 2 of 2"}},
           {changed(kTorchrun, {{"LOCAL_WORLD_SIZE", "5"}}),
            {"5 workers on this host", "4 in all"}},
           {changed(kLaunch, {{"LOCKSTEP_WORKERS", ""}}), {"LOCKSTEP_WORKERS is not set"}},
           {changed(kLaunch, {{"LOCKSTEP_CONTROL", ""}}), {"LOCKSTEP_CONTROL is not set"}},
           {changed(kLaunch, {{"LOCKSTEP_CONTROL", "n0"}}),
            {"LOCKSTEP_CONTROL", "'n0'", "no port"}},
           {changed(kLaunch, {{"LOCKSTEP_ROLE", "boss"}}), {"LOCKSTEP_ROLE='boss'", "evaluator"}},
           {changed(kLaunch, {{"LOCKSTEP_ROLE", "chief"}}), {"LOCKSTEP_ROLE=chief", "=1"}},
           {changed(kLaunch, {{"LOCKSTEP_CORES", "0"}}), {"LOCKSTEP_CORES='0'"}},
           {changed(kHydra, {}), {"PMI: 4 workers", "MASTER_ADDR is not set"}},
           {changed(kPod, {{"MASTER_ADDR", ""}}), {"Kubernetes", "MASTER_ADDR is not set"}},
           {changed(kPod, {{"LOCKSTEP_WORKERS", ""}}), {"LOCKSTEP_WORKERS", "completions"}},
           {changed(kPod, {{"JOB_COMPLETION_INDEX", "2"}}),
            {"JOB_COMPLETION_INDEX=2", "LOCKSTEP_WORKERS=2"}},
           {changed(kSrun, {{"SLURM_STEP_NODELIST", "n[0-99999999]"}}),
            {"SLURM_STEP_NODELIST='n[0-99999999]'", "65536"}},
           {changed(kSrun, {{"SLURM_STEP_TASKS_PER_NODE", "2(x"}}),
            {"SLURM_STEP_TASKS_PER_NODE='2(x'"}},
           {changed(kSrun, {{"SLURM_NODEID", "2"}}), {"SLURM_NODEID=2", "2(x2)"}},
           {changed(kSrun, {{"SLURM_PROCID", "4"}}), {"SLURM_PROCID=4", "SLURM_STEP_NUM_TASKS=4"}},
           {changed(kSrun, {{"SLURM_STEP_RESV_PORTS", "x"}}), {"SLURM_STEP_RESV_PORTS", "'x'"}}}) {
    const std::string text = found_in(Environment(wrong.variables));
    EXPECT_TRUE(text.starts_with("error: ")) << text;
    expect_all_in(text, wrong.said);
  }
}

// A user's own, in front of the ready ones.
struct Mine : ClusterResolver {
  std::string name() const override { return "mine"; }
  std::optional<ClusterSpec> resolve() const override { return answer; }
  std::optional<ClusterSpec> answer;
};

TEST(Resolvers, UsersWriteTheirOwn) {
  const auto mine = std::make_shared<Mine>();
  const FirstOfResolvers both({mine, std::make_shared<PlainResolver>(Environment(kPlain))});
  EXPECT_EQ(both.resolve()->started_by, "RANK and WORLD_SIZE");
  mine->answer = ClusterSpec{.started_by = "mine", .worker = 3, .workers = 5};
  EXPECT_EQ(both.resolve()->worker, 3);
  EXPECT_EQ(both.name(), "the first of: mine, RANK and WORLD_SIZE");
  EXPECT_THROW(FirstOfResolvers({nullptr}), UsageError);
}

TEST(ProcessEnvironment, HasTheVariablesOfThisProcess) {
  ASSERT_EQ(setenv("LOCKSTEP_TEST_VARIABLE", "a=b", 1), 0);
  EXPECT_EQ(process_environment().find("LOCKSTEP_TEST_VARIABLE"), "a=b");
  ASSERT_EQ(unsetenv("LOCKSTEP_TEST_VARIABLE"), 0);
  EXPECT_FALSE(process_environment().has("LOCKSTEP_TEST_VARIABLE"));
}

}  // namespace
}  // namespace lockstep
