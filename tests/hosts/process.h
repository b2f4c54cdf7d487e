// Process: a program that a test starts, with its output as it comes. It is killed when the object
// is destroyed, or when the test ends in whatever way.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace lockstep {

struct ProcessOptions {
  std::vector<std::string> command = {};                // the program is looked for in PATH
  std::map<std::string, std::string> environment = {};  // nothing else is passed on, but PATH
  std::string folder = "/";
  // Descriptors of namespaces to run in; -1: those of the test.
  int network = -1;
  // Namespaces of its own: a host name, and a file that takes the place of /etc/hosts.
  std::string host_name = {};
  std::string hosts_file = {};
};

class Process {
 public:
  // Started by a thread that lives as long as the process: the system kills it with that thread.
  explicit Process(const ProcessOptions& options);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void kill(int signal) const;
  // Standard output and standard error, so far.
  std::string text() const;
  // Until the output has this text; false if it ends before, or after the time.
  bool await_text(const std::string& text, std::chrono::seconds at_most);
  // The exit code, or 128 + the signal; nothing if it still runs after the time.
  std::optional<int> await_end(std::chrono::seconds at_most);

 private:
  void read_output(int pipe);

  pid_t pid_ = -1;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string text_;
  std::optional<int> code_;
  std::thread reader_;
};

// Runs a shell line to its end; std::runtime_error with its output where it fails.
void run_shell(const std::string& line, int network = -1);

}  // namespace lockstep
