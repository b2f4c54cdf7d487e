// in_quotes: a value from outside, for a message: in quotes, cut to a readable length, without
// control characters.
#pragma once

#include <string>
#include <string_view>

namespace lockstep {

std::string in_quotes(std::string_view value);

}  // namespace lockstep
