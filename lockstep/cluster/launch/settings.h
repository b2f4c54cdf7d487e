// Environments of processes: lists of NAME=value.
#pragma once

#include <string>
#include <vector>

#include "lockstep/cluster/launch/remote.h"

namespace lockstep::launch {

// The value of a variable; empty if there is none.
std::string value_in(const std::vector<std::string>& environment, const std::string& name);

// An environment in which the variables take the place of those of the same names.
std::vector<std::string> merged(const std::vector<std::string>& environment,
                                const Variables& variables);

}  // namespace lockstep::launch
