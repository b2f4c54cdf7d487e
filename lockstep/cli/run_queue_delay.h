// How long a thread was ready to run while its core ran something else.
#pragma once

#include <optional>

namespace lockstep::cli {

// For the calling thread, in seconds since it started; nothing if the system does not report it.
std::optional<double> run_queue_delay_of_this_thread();

}  // namespace lockstep::cli
