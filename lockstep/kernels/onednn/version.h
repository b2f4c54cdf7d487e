// Which oneDNN there is.
#pragma once

#include <string>

namespace lockstep {

// "3.5.0", of the library that was loaded; empty in a build without oneDNN.
std::string onednn_version();

}  // namespace lockstep
