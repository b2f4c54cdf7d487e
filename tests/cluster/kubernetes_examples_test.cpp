// The files in examples/kubernetes give their pods what the resolvers need. Whether they are valid
// is checked by scripts/check-kubernetes.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "cluster/resolved.h"
#include "lockstep/cluster/resolvers.h"

namespace lockstep {
namespace {

// The lines of an example, without indentation, quotes and the dash of a list.
std::vector<std::string> lines_of_example(const std::string& name) {
  std::ifstream file(LOCKSTEP_SOURCE_DIR "/examples/kubernetes/" + name);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    line.erase(0, line.find_first_not_of(' '));
    if (line.starts_with("- ")) line.erase(0, 2);
    std::erase(line, '"');
    lines.push_back(line);
  }
  return lines;
}

// "value: 4" is the pair (value, 4).
std::pair<std::string, std::string> field(const std::string& line) {
  const auto colon = line.find(": ");
  if (colon == std::string::npos) return {line, ""};
  return {line.substr(0, colon), line.substr(colon + 2)};
}

// The values of all fields of a name, in order.
std::vector<std::string> values_of(const std::vector<std::string>& lines, const std::string& name) {
  std::vector<std::string> values;
  for (const std::string& line : lines) {
    if (field(line).first == name) values.push_back(field(line).second);
  }
  return values;
}

// Variables are a name and a value in consecutive lines; nothing else in the examples is.
std::map<std::string, std::string> variables_in(const std::vector<std::string>& lines) {
  std::map<std::string, std::string> variables;
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    const auto [key, name] = field(lines[i]);
    const auto [next, value] = field(lines[i + 1]);
    if (key == "name" && next == "value") variables[name] = value;
  }
  return variables;
}

// What follows each occurrence of a line: mpirun's -n and -x.
std::set<std::string> lines_after(const std::vector<std::string>& lines, const std::string& line) {
  std::set<std::string> after;
  for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
    if (lines[i] == line) after.insert(lines[i + 1]);
  }
  return after;
}

using Values = std::vector<std::string>;

// The secret is mounted where the variable says.
void expect_secret(const std::vector<std::string>& lines,
                   const std::map<std::string, std::string>& variables) {
  const std::string file = variables.at("LOCKSTEP_SECRET_FILE");
  const Values mounted = values_of(lines, "mountPath");
  EXPECT_EQ(std::count(mounted.begin(), mounted.end(), file.substr(0, file.rfind('/'))), 1) << file;
}

TEST(KubernetesExamples, TheIndexedJobSaysWhatTheResolverNeeds) {
  const auto lines = lines_of_example("indexed-job.yaml");
  const auto variables = variables_in(lines);
  const std::string workers = variables.at("LOCKSTEP_WORKERS");
  for (int i = 0; i < std::stoi(workers); ++i) {
    auto pod = variables;
    pod["JOB_COMPLETION_INDEX"] = std::to_string(i);
    const std::string expected = "Kubernetes: " + std::string(i == 0 ? "chief " : "worker ") +
                                 std::to_string(i) + " of " + workers +
                                 (i == 0 ? " serves" : " at") + " train-0.train:14990";
    EXPECT_EQ(found_by(KubernetesResolver(Environment(pod))), expected);
    EXPECT_EQ(found_in(Environment(pod)), expected);
  }
  expect_secret(lines, variables);
}

TEST(KubernetesExamples, TheIndexedJobAgreesWithItsVariables) {
  const auto lines = lines_of_example("indexed-job.yaml");
  const auto variables = variables_in(lines);
  EXPECT_EQ(values_of(lines, "completions"), Values{variables.at("LOCKSTEP_WORKERS")});
  EXPECT_EQ(values_of(lines, "parallelism"), Values{variables.at("LOCKSTEP_WORKERS")});
  EXPECT_EQ(values_of(lines, "completionMode"), Values{"Indexed"});
  // The service's name comes first, then the Job's.
  const Values names = values_of(lines, "name");
  ASSERT_GE(names.size(), 2u);
  EXPECT_EQ(values_of(lines, "subdomain"), Values{names[0]});
  EXPECT_EQ(values_of(lines, "job-name"), Values{names[1]});
  EXPECT_EQ(variables.at("MASTER_ADDR"), names[1] + "-0." + names[0]);
}

TEST(KubernetesExamples, TheMpiJobSaysWhatTheResolverNeeds) {
  const auto lines = lines_of_example("mpi-job.yaml");
  const auto variables = variables_in(lines);
  const Values replicas = values_of(lines, "replicas");  // of the launcher, and of the workers
  ASSERT_EQ(replicas.size(), 2u);
  EXPECT_EQ(lines_after(lines, "-n"), std::set<std::string>{replicas[1]});
  std::map<std::string, std::string> worker = {{"OMPI_COMM_WORLD_RANK", "3"},
                                               {"OMPI_COMM_WORLD_SIZE", replicas[1]},
                                               {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                                               {"PMIX_NAMESPACE", "1200095233"}};
  // Only what mpirun passes on reaches the workers.
  for (const std::string& name : lines_after(lines, "-x")) worker[name] = variables.at(name);
  EXPECT_EQ(found_by(OpenMpiResolver(Environment(worker))),
            "Open MPI: worker 3 of 4 at train-mpi-worker-0.train-mpi:14990, local 0 of 1");
  EXPECT_EQ(worker.at("MASTER_ADDR"),
            values_of(lines, "name").front() + "-worker-0." + values_of(lines, "name").front());
  expect_secret(lines, worker);
}

TEST(KubernetesExamples, AllFollowOneRun) {
  for (const char* name : {"indexed-job.yaml", "mpi-job.yaml"}) {
    const auto lines = lines_of_example(name);
    EXPECT_EQ(std::count(lines.begin(), lines.end(), "--run-dir=/runs/first"), 1) << name;
    EXPECT_EQ(std::count(lines.begin(), lines.end(), "--strategy=multi-worker"), 1) << name;
  }
  const auto lines = lines_of_example("evaluator.yaml");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "/runs/first"), 1);
}

}  // namespace
}  // namespace lockstep
