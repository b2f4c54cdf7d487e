// Figures of this process that the system keeps.
#pragma once

#include <cstdint>

namespace lockstep::cli {

// Seconds since this process started, including the loading of libraries. From the kernel's start
// time of the process, which has a resolution of 10 ms.
double seconds_since_start();

// The most memory that it ever had.
std::int64_t peak_rss_bytes();

}  // namespace lockstep::cli
