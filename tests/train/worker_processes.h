// Runs tests of this program in several worker processes, which share memory or meet over Gloo.
#pragma once

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/cluster/control/control_server.h"
#include "train/worker.h"

namespace lockstep::testing {

inline std::string contents_of(int file) {
  std::string text;
  std::array<char, 4096> part;
  lseek(file, 0, SEEK_SET);
  for (ssize_t got = 0; (got = read(file, part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  return text;
}

// What one worker runs: a program with these tests, and what it finds in its environment besides.
struct WorkerProgram {
  std::string path = "/proc/self/exe";
  std::vector<std::pair<std::string, std::string>> environment = {};
};

// Starts it and returns its process.
inline pid_t start(const WorkerProgram& program, const std::string& filter, int log) {
  for (const auto& [name, value] : program.environment) setenv(name.c_str(), value.c_str(), 1);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, log, 1);
  posix_spawn_file_actions_adddup2(&actions, log, 2);
  std::string name = "train_test";
  std::string argument = "--gtest_filter=" + filter;
  char* const arguments[] = {name.data(), argument.data(), nullptr};
  pid_t child = 0;
  EXPECT_EQ(posix_spawn(&child, program.path.c_str(), &actions, nullptr, arguments, environ), 0)
      << program.path;
  posix_spawn_file_actions_destroy(&actions);
  for (const auto& [variable, value] : program.environment) unsetenv(variable.c_str());
  return child;
}

enum class Over { SharedMemory, Gloo };

// Runs the tests that a filter names in as many workers as are asked for; all but the first one run
// `others`. Returns what each of them printed.
inline std::vector<std::string> expect_success(const std::string& filter, int workers,
                                               const WorkerProgram& others = {},
                                               Over over = Over::SharedMemory) {
  const int fd = SharedHost::create(workers, OnExec::Keep);
  std::optional<ControlServer> server;
  if (over == Over::Gloo) server.emplace(ControlServerOptions{.workers = workers});
  const std::string where = server ? "gloo " + server->address() : fmt::format("shared {}", fd);
  std::vector<pid_t> children;
  std::vector<int> logs;
  unsetenv("GTEST_TOTAL_SHARDS");  // a worker runs all of them
  unsetenv("GTEST_SHARD_INDEX");
  for (int worker = 0; worker < workers; ++worker) {
    setenv(kWorkerVariable, fmt::format("{} {} {}", worker, workers, where).c_str(), 1);
    logs.push_back(memfd_create("log", MFD_CLOEXEC));
    children.push_back(start(worker == 0 ? WorkerProgram{} : others, filter, logs.back()));
  }
  unsetenv(kWorkerVariable);
  close(fd);
  std::vector<std::string> printed;
  for (std::size_t worker = 0; worker < children.size(); ++worker) {
    int status = 0;
    if (children[worker] > 0) waitpid(children[worker], &status, 0);
    const std::string log = contents_of(logs[worker]);
    close(logs[worker]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "worker " << worker << ":\n"
                                                               << log;
    EXPECT_EQ(log.find(" 0 tests from"), std::string::npos) << log;
    printed.push_back(log);
  }
  return printed;
}

}  // namespace lockstep::testing
