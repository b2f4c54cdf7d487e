#include "lockstep/cli/run_queue_delay.h"

#include <cstdint>
#include <fstream>

namespace lockstep::cli {

// The file holds the nanoseconds that the thread ran, those that it waited to run, and how often it
// ran; all zero if the kernel was built without schedstats.
std::optional<double> run_queue_delay_of_this_thread() {
  std::ifstream file("/proc/thread-self/schedstat");
  std::int64_t ran = 0;
  std::int64_t waited = 0;
  if (!(file >> ran >> waited) || ran == 0) return {};
  return static_cast<double>(waited) * 1e-9;
}

}  // namespace lockstep::cli
