// Lines: cuts what a worker writes into whole lines and progress.
//
// A line ends with '\n'. Text that is followed by '\r' is progress: a terminal would write over it.
// "\r\n" ends a line, too.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace lockstep::launch {

class Lines {
 public:
  struct Line {
    std::string_view text;  // of a line that was written over, what was last visible
    bool progress = false;  // it was written over
  };

  // `line` is called for every finished line, `progress` for text that is going to be written over.
  Lines(std::function<void(const Line&)> line, std::function<void(std::string_view)> progress)
      : line_(std::move(line)), progress_(std::move(progress)) {}

  void add(std::string_view text);
  // The stream has ended: what is left is a line.
  void end();

 private:
  void finish_line();
  void carriage_return();

  std::function<void(const Line&)> line_;
  std::function<void(std::string_view)> progress_;
  std::string held_;     // since the last '\n' or '\r'
  std::string visible_;  // what the last '\r' left on the line
  bool returned_ = false;
  bool written_over_ = false;
};

}  // namespace lockstep::launch
