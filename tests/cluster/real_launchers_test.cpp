// The resolvers under real launchers: print_spec as two processes of mpirun and of srun.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "cluster/resolved.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

const std::string kPrintSpec = LOCKSTEP_BINARY_DIR "/bin/print_spec";
const std::string kSlurm = LOCKSTEP_SOURCE_DIR "/tests/cluster/one_node_slurm";

struct Ran {
  int code = -1;
  std::string output;
};

// Without the variables of a launcher that may have started this test.
Ran run(const std::string& command) {
  const std::string whole =
      "for v in $(env | grep -oE '^(SLURM|OMPI|PMI|PMIX|MPI|TORCHELASTIC)_[A-Za-z0-9_]+=|^(RANK|"
      "WORLD_SIZE|MASTER_ADDR|MASTER_PORT|TF_CONFIG|JOB_COMPLETION_INDEX|LOCKSTEP_WORKERS?)=' | "
      "tr -d =); do unset \"$v\"; done; " +
      command + " 2>&1 </dev/null";
  FILE* pipe = popen(whole.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("no pipe");
  Ran ran;
  char buffer[4096];
  for (std::size_t got = 0; (got = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    ran.output.append(buffer, got);
  }
  const int status = pclose(pipe);
  ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}

bool installed(const std::string& program) {
  return run("command -v " + program).code == 0;
}

// The text between brackets of each process, with the port, which differs from job to job, as P.
std::multiset<std::string> specs(const std::string& output) {
  static const std::regex spec("\\[(.*)\\]\n");
  static const std::regex port("(127\\.0\\.0\\.1:)[0-9]+");
  std::multiset<std::string> found;
  for (std::sregex_iterator it(output.begin(), output.end(), spec), end; it != end; ++it) {
    found.insert(std::regex_replace((*it)[1].str(), port, "$1P"));
  }
  return found;
}

std::set<std::string> ports(const std::string& output) {
  static const std::regex port("127\\.0\\.0\\.1:([0-9]+)");
  std::set<std::string> found;
  for (std::sregex_iterator it(output.begin(), output.end(), port), end; it != end; ++it) {
    found.insert((*it)[1]);
  }
  return found;
}

const std::multiset<std::string> kTwoOfOpenMpi = {
    "Open MPI: chief 0 of 2 serves 127.0.0.1:P, local 0 of 2",
    "Open MPI: worker 1 of 2 at 127.0.0.1:P, local 1 of 2"};
const std::string kMpirun = "mpirun --allow-run-as-root --oversubscribe -n 2 ";

TEST(RealLaunchers, MpirunsProcessesFindOneAnother) {
  if (!installed("mpirun")) GTEST_SKIP() << "mpirun is not installed (Debian: openmpi-bin)";
  const Ran ran = run("timeout 60 " + kMpirun + kPrintSpec);
  ASSERT_EQ(ran.code, 0) << ran.output;
  if (specs(ran.output) != kTwoOfOpenMpi && ran.output.find("Open MPI") == std::string::npos) {
    GTEST_SKIP() << "mpirun is not Open MPI's";
  }
  EXPECT_EQ(specs(ran.output), kTwoOfOpenMpi) << ran.output;
  EXPECT_EQ(ports(ran.output).size(), 1u) << ran.output;
}

// Several ports that were free a moment ago.
std::vector<int> free_ports(int count) {
  std::vector<int> sockets;
  std::vector<int> found;
  for (int i = 0; i < count; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("no free port");
    }
    sockets.push_back(fd);
    found.push_back(ntohs(address.sin_port));
  }
  for (const int fd : sockets) close(fd);
  return found;
}

class RealSlurm : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "only root can start a Slurm of its own";
    for (const char* program : {"munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc"}) {
      if (!installed(program)) {
        GTEST_SKIP() << program
                     << " is not installed (Debian: munge slurmctld slurmd slurm-client)";
      }
    }
  }

  // Runs the lines of a script with a Slurm of one node, with four CPUs.
  Ran with_slurm(const std::string& script) {
    const TemporaryFolder folder;
    std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
    std::ofstream(folder / "script") << "set -e\ncd '" << folder.path() << "'\n" << script;
    const std::vector<int> ports = free_ports(2);
    std::ostringstream command;
    command << "timeout -k 5 90 " << kSlurm << " '" << folder.path() << "' " << ports[0] << " "
            << ports[1] << " bash '" << (folder / "script").string() << "'";
    return run(command.str());
  }
};

// One start of Slurm for all: starting it takes longer than the jobs.
TEST_F(RealSlurm, TasksFindOneAnotherAndBatchScriptsAndShellsStandAlone) {
  const std::string mpirun = installed("mpirun") ? "echo == mpirun; salloc -Q -n2 timeout 60 " +
                                                       kMpirun + kPrintSpec + "\n"
                                                 : "";
  const Ran ran = with_slurm(
      "echo == srun; timeout 60 srun -Q -n2 -c2 " + kPrintSpec + "\n" +
      "echo == salloc; timeout 60 salloc -Q -n2 " + kPrintSpec + "\n" +
      // sbatch -W asks only now and then; a pipe says at once that the script has run.
      "mkfifo spec\n" + "printf '#!/bin/sh\\n" + kPrintSpec + " >spec\\n' >batch\n" +
      "echo == sbatch; sbatch -Q -n2 -o /dev/null batch; timeout 60 cat spec\n" + mpirun);
  if (ran.code == 77) GTEST_SKIP() << "Slurm does not run on this machine: " << ran.output;
  ASSERT_EQ(ran.code, 0) << ran.output;
  const auto section = [&](const std::string& name) {
    const auto begin = ran.output.find("== " + name + "\n");
    return ran.output.substr(begin, ran.output.find("== ", begin + 3) - begin);
  };
  EXPECT_EQ(
      specs(section("srun")),
      (std::multiset<std::string>{"Slurm: chief 0 of 2 serves 127.0.0.1:P, local 0 of 2, 2 cores",
                                  "Slurm: worker 1 of 2 at 127.0.0.1:P, local 1 of 2, 2 cores"}))
      << ran.output;
  EXPECT_EQ(ports(section("srun")).size(), 1u);
  for (const char* alone : {"salloc", "sbatch"}) {
    EXPECT_EQ(specs(section(alone)),
              (std::multiset<std::string>{"Slurm: chief 0 of 1, local 0 of 1"}))
        << ran.output;
    expect_all_in(section(alone), {"remark: Slurm's job has 2 tasks", "start it with srun"});
  }
  if (!mpirun.empty()) {
    EXPECT_EQ(specs(section("mpirun")), kTwoOfOpenMpi) << ran.output;
  }
}

}  // namespace
}  // namespace lockstep
