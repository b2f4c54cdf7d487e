// Numbers written as text, as in a CSV file.
#pragma once

#include <cstddef>
#include <string_view>

#include "lockstep/base/dtype.h"

namespace lockstep {

enum class CsvParsed { Good, NotANumber, OutOfRange };

// Reads the whole field, without the spaces around it, as a value of a dtype (f32, f64, i32, i64 or
// bool) and writes it, at any alignment. Numbers too close to zero for the type become zero.
CsvParsed parse_value(std::string_view field, DType dtype, std::byte* to);

// The common case, without searching for the end of the field first: reads a number at `at` that is
// followed by `delimiter` or `end`, and returns where it stopped; null for anything else, which is
// left to parse_value.
const char* parse_leading(const char* at, const char* end, char delimiter, DType dtype,
                          std::byte* to);

}  // namespace lockstep
