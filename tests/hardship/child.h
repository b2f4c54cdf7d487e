// A program run as a child process that can be killed, and never waited for in vain.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::hardship {

struct Ended {
  int code = -1;       // of a process that ended by itself
  int signal = 0;      // that ended it otherwise
  bool hung = false;   // it was still running when its time was over
  std::string output;  // standard output and error, the last part of it

  bool killed_by_us() const { return signal == 9 && !hung; }
  std::size_t lines() const;
};

// Runs lockstep with these arguments in a folder, its output in `<folder>/.output`.
class Child {
 public:
  // With `address_space` bytes at most, where it is given (ulimit -v).
  Child(const std::filesystem::path& folder, const std::vector<std::string>& arguments,
        std::optional<std::uint64_t> address_space = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Waits for the end; kills it when `limit` is over, and says that it hung.
  Ended wait(std::chrono::milliseconds limit);
  // Waits for the end for this long, then kills it.
  Ended kill_after(std::chrono::milliseconds time);

 private:
  bool ends_within(std::chrono::milliseconds time);
  Ended collect();

  std::filesystem::path output_;
  int pid_ = -1;
  int descriptor_ = -1;  // readable when the process has ended
};

}  // namespace lockstep::hardship
