// What to do about an error, for people who run the program.
#pragma once

#include <string>

namespace lockstep::cli {

// The library's messages advise people who write C++. Where a message ends in advice that a user of
// the program cannot follow, returns it with advice in terms of the program's flags instead.
std::string for_program(const std::string& message);

}  // namespace lockstep::cli
