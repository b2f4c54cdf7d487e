// exchange: every rank gives some bytes and gets those of all.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep {

// What every rank gave, in the order of the ranks: any number of bytes each, or none. Collective,
// over a communicator that takes host memory. It allocates: use it for agreements, not in steps.
// (Call it as lockstep::exchange: for a std::string the compiler finds std::exchange as well.)
std::vector<std::string> exchange(Communicator& comm, std::string_view mine);

}  // namespace lockstep
