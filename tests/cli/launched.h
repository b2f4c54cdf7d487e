// Helpers for tests of lockstep launch: awaiting the end of processes that are not our children.
#pragma once

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace lockstep {

constexpr int kHangGuardMs = 120'000;

// Another process, observed while it still lives.
class Observed {
 public:
  explicit Observed(int id) : descriptor_(static_cast<int>(syscall(SYS_pidfd_open, id, 0))) {}
  ~Observed() { close(descriptor_); }
  Observed(Observed&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

  bool found() const { return descriptor_ >= 0; }
  // False if it still runs after the hang guard.
  bool wait() const {
    pollfd ended = {.fd = descriptor_, .events = POLLIN, .revents = 0};
    return poll(&ended, 1, kHangGuardMs) == 1;
  }

 private:
  int descriptor_;
};

// The numbers that follow each occurrence of a word: "worker=12 ... worker=13".
inline std::vector<int> numbers_after(const std::string& text, const std::string& word) {
  std::vector<int> numbers;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    numbers.push_back(std::stoi(text.substr(at + word.size())));
  }
  return numbers;
}

inline std::string whole_file(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace lockstep
