#include "lockstep/cluster/launch/screen.h"

namespace lockstep::launch {
namespace {

constexpr std::string_view kErase = "\r\x1b[K";

// The first `columns` characters of UTF-8 text.
std::string_view clipped(std::string_view text, int columns) {
  int seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xC0U) != 0x80U;
    if (begins && seen++ == columns) return text.substr(0, i);
  }
  return text;
}

}  // namespace

void Screen::line(Stream stream, const std::string& prefix, std::string_view text) {
  erase();
  std::string whole = prefix;
  whole.append(text).append("\n");
  (stream == Stream::Out ? sinks_.out : sinks_.err)(whole);
  ++lines_;
  if (!progress_.empty()) sinks_.out(progress_);
}

void Screen::progress(const std::string& prefix, std::string_view text) {
  if (sinks_.columns == 0) return;
  erase();
  std::string whole = prefix;
  whole.append(text);
  // The last column stays free: a terminal would begin a new line behind it.
  progress_ = clipped(whole, sinks_.columns - 1);
  sinks_.out(progress_);
}

void Screen::clear_progress() {
  erase();
  progress_.clear();
}

void Screen::erase() {
  if (!progress_.empty()) sinks_.out(kErase);
}

}  // namespace lockstep::launch
