// Formats a measured number for people.
#pragma once

#include <string>

namespace lockstep {

// 0.3142, but 1.23e+30 and 4.5e-07: never a row of zeros or more digits than fit in a line.
std::string figure(double value);

}  // namespace lockstep
