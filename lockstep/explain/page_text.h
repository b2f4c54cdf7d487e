// Texts of a page: escaped names, and numbers as people read them.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace lockstep::page {

// For the text of an element and for an attribute's value. Control characters and bytes that are
// not UTF-8 become U+FFFD.
std::string escaped(std::string_view text);

// The length of the character at the front of a text that is not empty; 0 if it is not UTF-8.
std::size_t utf8_length(std::string_view text);

// A number that is not finite is "?".
std::string percent_text(double fraction);  // "12.3%"
std::string times_text(double times);       // "2.10×"
std::string ms_text(double ms);             // "12.3 ms", "840 µs", "2.5 s"
std::string seconds_text(double seconds);   // "3.1 s", "12 min 5 s"
std::string size_text(double bytes);        // "1.4 GiB"
std::string short_text(double value);       // "0.3142", "1.235e+04"

}  // namespace lockstep::page
