// Numbers written as text, as in a CSV file.
#pragma once

#include <cstddef>
#include <string_view>

#include "lockstep/base/dtype.h"

namespace lockstep {

enum class CsvParsed { Good, NotANumber, OutOfRange };

// Reads the whole field, spaces around it aside, as a value of a dtype (f32, f64, i32, i64 or bool)
// and writes it, at any alignment. A number closer to zero than a float can be is zero.
CsvParsed parse_value(std::string_view field, DType dtype, std::byte* to);

// The common case, without a look at the field's end first: reads a number at `at` that is followed
// by `delimiter` or by `end`, and returns where it stopped; null where it is anything else, to be
// told by parse_value.
const char* parse_leading(const char* at, const char* end, char delimiter, DType dtype,
                          std::byte* to);

}  // namespace lockstep
