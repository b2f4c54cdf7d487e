// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::cli {

std::string bytes_text(double bytes);        // "1.4 GiB"
std::string count_text(std::int64_t count);  // "1,234,567"
double median(std::vector<double> values);   // 0 if there are none

}  // namespace lockstep::cli
