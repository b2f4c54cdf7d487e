#include "lockstep/cluster/launch/lines.h"

namespace lockstep::launch {
namespace {

// A line that is longer is shown in pieces: what is held back must not grow without end.
constexpr std::size_t kLongestLine = std::size_t{1} << 20;

}  // namespace

void Lines::add(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find_first_of("\n\r");
    const std::string_view part = text.substr(0, end);
    written_over_ = written_over_ || (returned_ && !part.empty());
    held_ += part;
    if (end == std::string_view::npos) {
      if (held_.size() > kLongestLine) {
        finish_line();
      } else if (written_over_) {
        progress_(held_);  // "\r50%" says with the next '\r' only that it is over
      }
      return;
    }
    if (text[end] == '\n') {
      finish_line();
    } else {
      carriage_return();
    }
    text.remove_prefix(end + 1);
  }
}

void Lines::end() {
  if (!held_.empty() || !visible_.empty()) finish_line();
}

void Lines::carriage_return() {
  returned_ = true;
  if (held_.empty()) return;
  visible_ = std::move(held_);
  held_.clear();
  progress_(visible_);
}

void Lines::finish_line() {
  const std::string text = held_.empty() ? std::move(visible_) : std::move(held_);
  const bool progress = written_over_;
  held_.clear();
  visible_.clear();
  returned_ = written_over_ = false;
  line_({text, progress});
}

}  // namespace lockstep::launch
