// The job's secret: whoever knows it belongs to the job.
#pragma once

#include <string>

namespace lockstep::launch {

// 32 random bytes in hexadecimal digits.
std::string make_secret();

}  // namespace lockstep::launch
