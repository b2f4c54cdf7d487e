// Processes that meet in shared memory: each is a new run of the test that asks for them, as a
// separate program, so that sanitizers know all of its threads.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/shared/shared_host.h"

namespace lockstep {

inline constexpr const char* kProcessVariable = "LOCKSTEP_TEST_PROCESS";
// The exit status of a process that has run its body without a failure.
inline constexpr int kBodyRan = 42;

struct ProcessesOptions {
  int processes = 2;
  int absent = -1;  // one that never comes
  std::chrono::milliseconds timeout = std::chrono::minutes(2);
};

inline std::string text_of(int fd) {
  std::string text(static_cast<std::size_t>(lseek(fd, 0, SEEK_END)), '\0');
  const ssize_t got = pread(fd, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

// Runs the body as one of the processes, and ends the program.
[[noreturn]] inline void run_body(const char* what, const ProcessesOptions& options,
                                  const std::function<void(SharedHost&)>& body) {
  int process = 0;
  int fd = 0;
  if (std::sscanf(what, "%d %d", &process, &fd) != 2) std::abort();
  try {
    SharedHost host(fd, process, options.processes, options.timeout);
    body(host);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "process " << process << ": " << error.what();
  }
  std::exit(testing::Test::HasFailure() ? 1 : kBodyRan);
}

// Runs body(host) in every process. Returns the status of each from waitpid, 0 if it has run its
// body without a failure; otherwise its output is a failure of this test, unless it was killed by
// SIGKILL.
inline std::vector<int> run_processes(const ProcessesOptions& options,
                                      const std::function<void(SharedHost&)>& body) {
  if (const char* what = std::getenv(kProcessVariable)) run_body(what, options, body);
  const testing::TestInfo& test = *testing::UnitTest::GetInstance()->current_test_info();
  std::string filter = std::string("--gtest_filter=") + test.test_suite_name() + "." + test.name();
  std::string program = "comm_test";
  const int fd = SharedHost::create(options.processes, OnExec::Keep);
  const int log = memfd_create("log", MFD_CLOEXEC);
  std::vector<pid_t> children;
  // A child runs this one test, whatever shard of the tests the parent was given.
  unsetenv("GTEST_TOTAL_SHARDS");
  unsetenv("GTEST_SHARD_INDEX");
  for (int process = 0; process < options.processes; ++process) {
    if (process == options.absent) continue;
    setenv(kProcessVariable, (std::to_string(process) + " " + std::to_string(fd)).c_str(), 1);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, log, 1);
    posix_spawn_file_actions_adddup2(&actions, log, 2);
    char* const arguments[] = {program.data(), filter.data(), nullptr};
    pid_t child = 0;
    EXPECT_EQ(posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    children.push_back(child);
  }
  unsetenv(kProcessVariable);
  close(fd);
  std::vector<int> statuses;
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    const bool ran = WIFEXITED(status) && WEXITSTATUS(status) == kBodyRan;
    statuses.push_back(ran ? 0 : status);
    good = good && (ran || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
  }
  if (!good) ADD_FAILURE() << text_of(log);
  close(log);
  return statuses;
}

}  // namespace lockstep
