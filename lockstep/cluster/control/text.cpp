#include "lockstep/cluster/control/text.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace lockstep {

std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 200;
  std::string line(text.substr(0, kMost));
  for (char& each : line) {
    const auto code = static_cast<unsigned char>(each);
    if (code < 32 || code == 127) each = '?';
  }
  return text.size() > kMost ? line + "..." : line;
}

std::string shown(std::chrono::steady_clock::duration time) {
  return fmt::format("{:.1f} s", std::chrono::duration<double>(time).count());
}

std::chrono::milliseconds timeout_of(std::uint64_t milliseconds) {
  constexpr std::uint64_t kYear = 365ull * 24 * 3600 * 1000;
  return std::chrono::milliseconds(std::min(milliseconds, kYear));
}

std::string default_identity() {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return fmt::format("{}:pid {}", host, getpid());
}

FailureKind failure_kind_of(std::uint32_t number) {
  return number <= static_cast<std::uint32_t>(FailureKind::Other) ? static_cast<FailureKind>(number)
                                                                  : FailureKind::Other;
}

}  // namespace lockstep
