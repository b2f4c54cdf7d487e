// Text that came over the network, and times, as messages show them.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/comm/failure.h"

namespace lockstep {

// Without control characters, and not longer than a line.
std::string shown(std::string_view text);
// "5.0 s"
std::string shown(std::chrono::steady_clock::duration time);
// A number of milliseconds from the network as a time that can be added to others.
std::chrono::milliseconds timeout_of(std::uint64_t milliseconds);
// This process, for people: "host:pid 4711".
std::string default_identity();
FailureKind failure_kind_of(std::uint32_t number);

}  // namespace lockstep
