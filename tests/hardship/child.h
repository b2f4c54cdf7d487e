// Runs a program as a child process that can be killed and is never waited for indefinitely.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::hardship {

struct Ended {
  int code = -1;       // the exit code, if it exited
  int signal = 0;      // the signal that ended it otherwise
  bool hung = false;   // still running at the time limit
  std::string output;  // the last part of standard output and error

  bool killed_by_us() const { return signal == 9 && !hung; }
  std::size_t lines() const;
};

// Runs lockstep with these arguments in a folder, with its output in `<folder>/.output`.
class Child {
 public:
  // `address_space` limits the bytes of its address space (ulimit -v).
  Child(const std::filesystem::path& folder, const std::vector<std::string>& arguments,
        std::optional<std::uint64_t> address_space = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Waits for the process to end; after `limit`, kills it and reports it as hung.
  Ended wait(std::chrono::milliseconds limit);
  // Kills the process after this time, unless it ends before.
  Ended kill_after(std::chrono::milliseconds time);

 private:
  bool ends_within(std::chrono::milliseconds time);
  Ended collect();

  std::filesystem::path output_;
  int pid_ = -1;
  int descriptor_ = -1;  // readable when the process has ended
};

}  // namespace lockstep::hardship
