// The version of oneDNN.
#pragma once

#include <string>

namespace lockstep {

// The version of the loaded library, such as "3.5.0"; empty in a build without oneDNN.
std::string onednn_version();

}  // namespace lockstep
