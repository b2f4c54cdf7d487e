// How long a thread stood ready to run while its core ran something else: another program, say.
#pragma once

#include <optional>

namespace lockstep::cli {

// Of the calling thread, in seconds since it began; nothing where the system does not tell.
std::optional<double> seconds_taken_from_this_thread();

}  // namespace lockstep::cli
