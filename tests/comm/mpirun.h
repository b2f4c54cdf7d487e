// Runs the test that asks for it again, as the workers of an MPI job.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "comm/processes.h"
#include "comm/workers.h"
#include "lockstep/comm/mpi/mpi_wire.h"

namespace lockstep {

inline constexpr const char* kMpiVariable = "LOCKSTEP_TEST_MPI";

inline bool have_mpirun() {
  for (const char* folder : {"/usr/bin", "/usr/local/bin"}) {
    if (std::filesystem::exists(std::filesystem::path(folder) / "mpirun")) return true;
  }
  return false;
}

// Starts so many processes that run this test; its output is a failure of this test unless they
// succeed.
inline void start_mpi_workers(int workers) {
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  std::vector<std::string> words = {
      "mpirun",
      "--allow-run-as-root",
      "--oversubscribe",
      "--mca",
      "oob_tcp_if_include",
      "lo",
      "--mca",
      "btl",
      "self,vader",
      "-x",
      std::string(kMpiVariable) + "=1",
      "-n",
      std::to_string(workers),
      std::filesystem::read_symlink("/proc/self/exe"),
      std::string("--gtest_filter=") + test.test_suite_name() + "." + test.name()};
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  unsetenv("GTEST_TOTAL_SHARDS");
  unsetenv("GTEST_SHARD_INDEX");
  // Open MPI does not free everything that it allocates.
  setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
  const int log = memfd_create("log", MFD_CLOEXEC);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, log, 1);
  posix_spawn_file_actions_adddup2(&actions, log, 2);
  pid_t child = 0;
  ASSERT_EQ(posix_spawnp(&child, "mpirun", &actions, nullptr, arguments.data(), environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ADD_FAILURE() << text_of(log);
  close(log);
}

// Calls the body in every process of an MPI job.
inline void run_mpi_job(int workers, const std::function<void()>& body) {
  if (std::getenv(kMpiVariable) == nullptr) {
    if (!has_mpi()) GTEST_SKIP() << "this build has no MPI (libopenmpi-dev)";
    if (!have_mpirun()) GTEST_SKIP() << "there is no mpirun (openmpi-bin)";
    return start_mpi_workers(workers);
  }
  body();
}

// Calls body(group, worker) in every process of an MPI job.
inline void run_mpi_workers(const std::vector<int>& ranks_of_worker,
                            const std::function<void(Group&, int worker)>& body) {
  run_mpi_job(static_cast<int>(ranks_of_worker.size()), [&] {
    RemoteGroup group(remote_group_of(ranks_of_worker, mpi_wires()));
    body(group, mpi_place().worker);
  });
}

}  // namespace lockstep
