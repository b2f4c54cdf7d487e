// Several workers, each a process of its own, that run one test of a program together on one GPU.
// NCCL lets two ranks share a GPU if each claims to be on another host.
#pragma once

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/cluster/control/control_client.h"
#include "lockstep/cluster/control/control_server.h"

namespace lockstep::testing {

inline constexpr const char* kPlaceVariable = "LOCKSTEP_TEST_GPU_WORKER";
inline constexpr unsigned kHangGuard = 120;  // seconds

// What a worker finds in its environment.
struct WorkerPlace {
  int worker = 0;
  int workers = 1;
  int attempt = 0;  // how often this worker was started before
  std::string address = {};
  std::string device = {};
  std::filesystem::path folder = {};

  std::string text() const {
    std::ostringstream text;
    text << worker << ' ' << workers << ' ' << attempt << ' ' << address << ' ' << device << ' '
         << folder.string();
    return text.str();
  }
  // None where the test does not run as a worker.
  static std::optional<WorkerPlace> current() {
    const char* const text = std::getenv(kPlaceVariable);
    if (text == nullptr) return std::nullopt;
    WorkerPlace place;
    std::string folder;
    std::istringstream(text) >> place.worker >> place.workers >> place.attempt >> place.address >>
        place.device >> folder;
    place.folder = folder;
    alarm(kHangGuard);
    return place;
  }
  std::shared_ptr<ControlClient> join() const {
    return std::make_shared<ControlClient>(
        ControlClientOptions{.address = address, .worker = worker, .workers = workers});
  }
};

// A program that runs as a worker, and what it prints.
class WorkerProcess {
 public:
  WorkerProcess(std::string program, const std::string& filter, int worker,
                std::pair<std::string, std::string> variable)
      : log_(memfd_create("log", MFD_CLOEXEC)) {
    // A child runs this one test, whatever shard of the tests the parent was given.
    unsetenv("GTEST_TOTAL_SHARDS");
    unsetenv("GTEST_SHARD_INDEX");
    setenv(variable.first.c_str(), variable.second.c_str(), 1);
    setenv("NCCL_HOSTID", ("host" + std::to_string(worker)).c_str(), 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, log_, 1);
    posix_spawn_file_actions_adddup2(&actions, log_, 2);
    std::string argument = "--gtest_filter=" + filter;
    char* const arguments[] = {program.data(), argument.data(), nullptr};
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environ), 0)
        << program;
    posix_spawn_file_actions_destroy(&actions);
    for (const char* name : {variable.first.c_str(), "NCCL_HOSTID", "NCCL_SOCKET_IFNAME"}) {
      unsetenv(name);
    }
  }
  ~WorkerProcess() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      wait();
    }
    close(log_);
  }
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;

  // Whether it has not ended yet.
  bool runs() const {
    siginfo_t info = {};
    return pid_ > 0 &&
           waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
  }
  // Its status, from waitpid.
  int wait() {
    int status = -1;
    if (pid_ > 0) waitpid(pid_, &status, 0);
    pid_ = -1;
    return status;
  }
  void expect_success() {
    const int status = wait();
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status << "\n" << printed();
    EXPECT_EQ(printed().find(" 0 tests from"), std::string::npos) << printed();
    EXPECT_EQ(printed().find("SKIPPED"), std::string::npos) << printed();
  }
  std::string printed() const {
    std::string text(static_cast<std::size_t>(lseek(log_, 0, SEEK_END)), '\0');
    const ssize_t got = pread(log_, text.data(), text.size(), 0);
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }

 private:
  int log_;
  pid_t pid_ = -1;
};

// Numbers that a worker leaves for the test that started it.
inline void write_numbers(const std::filesystem::path& file, const std::vector<double>& numbers) {
  std::ofstream stream(file);
  stream.precision(17);
  for (const double number : numbers) stream << number << '\n';
}

inline std::vector<double> read_numbers(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::vector<double> numbers;
  for (double number = 0; stream >> number;) numbers.push_back(number);
  return numbers;
}

}  // namespace lockstep::testing
