#include "lockstep/cli/interrupt.h"

#include <array>
#include <atomic>
#include <csignal>

namespace lockstep::cli {
namespace {

// SIGUSR1 is what clusters send before they take a machine away.
constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

std::atomic<int> caught = 0;
static_assert(std::atomic<int>::is_always_lock_free);

// A closing terminal sends SIGHUP more than once, which must not end the process at once.
void remember(int signal) {
  int none = 0;
  caught.compare_exchange_strong(none, signal);
  for (const int each : kSignals) {
    const auto before = std::signal(each, each == SIGHUP ? SIG_IGN : SIG_DFL);
    if (before == SIG_IGN) std::signal(each, SIG_IGN);
  }
}

}  // namespace

void catch_signals() {
  for (const int each : kSignals) {
    if (std::signal(each, remember) == SIG_IGN) std::signal(each, SIG_IGN);
  }
  std::signal(SIGPIPE, SIG_IGN);
}

int caught_signal() {
  return caught;
}

const char* signal_name(int signal) {
  switch (signal) {
    case SIGINT:
      return "SIGINT";
    case SIGTERM:
      return "SIGTERM";
    case SIGHUP:
      return "SIGHUP";
    case SIGUSR1:
      return "SIGUSR1";
    default:
      return "a signal";
  }
}

}  // namespace lockstep::cli
