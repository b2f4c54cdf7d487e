// Numbers as people read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::cli {

std::string bytes_text(double bytes);        // "1.4 GiB"
std::string count_text(std::int64_t count);  // "1,234,567"
// Columns that a UTF-8 text takes on a terminal, if every character takes one.
std::size_t display_width(std::string_view text);
double median(std::vector<double> values);  // 0 if there are none

}  // namespace lockstep::cli
