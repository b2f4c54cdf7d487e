// Screen: the lines of all workers on one terminal, and the chief's progress as one updating line
// below them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace lockstep::launch {

// Where text goes; the launcher itself writes to no terminal.
struct Sinks {
  std::function<void(std::string_view)> out;
  std::function<void(std::string_view)> err;
  // The width of the terminal that shows both; 0: it is none, and progress is not shown.
  int columns = 0;
};

class Screen {
 public:
  explicit Screen(Sinks sinks) : sinks_(std::move(sinks)) {}

  enum class Stream { Out, Err };
  // One whole line, without its end.
  void line(Stream stream, const std::string& prefix, std::string_view text);
  void progress(const std::string& prefix, std::string_view text);
  // The progress has become a line, or ends.
  void clear_progress();

  // How many lines have been shown.
  std::uint64_t lines() const { return lines_; }

 private:
  void erase();

  Sinks sinks_;
  std::string progress_;  // shown below all lines
  std::uint64_t lines_ = 0;
};

}  // namespace lockstep::launch
