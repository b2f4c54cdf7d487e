#include "lockstep/cli/taken_time.h"

#include <cstdint>
#include <fstream>

namespace lockstep::cli {

// Linux tells, in nanoseconds: how long it ran, how long it waited to run, and how often it ran;
// zeros where it was built without that.
std::optional<double> seconds_taken_from_this_thread() {
  std::ifstream file("/proc/thread-self/schedstat");
  std::int64_t ran = 0;
  std::int64_t waited = 0;
  if (!(file >> ran >> waited) || ran == 0) return {};
  return static_cast<double>(waited) * 1e-9;
}

}  // namespace lockstep::cli
