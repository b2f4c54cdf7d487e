// Where the results of a command go: --json and --trace.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::cli {

// Keys stay in the order in which they are set: people read these files too.
using Json = nlohmann::ordered_json;

// "-" and the system's own names for it, such as /dev/stdout.
bool is_standard_output(const std::string& target);

// UsageError, at once, where what a flag names cannot be written: not after an hour of work.
void check_target(const char* flag, const std::string& target);

// Writes the text to what a flag names: the standard output; a file, through symbolic links, whole
// or not at all; anything else (a device, a pipe) as it is. DataError, naming flag and target,
// where that fails.
void write_target(const char* flag, const std::string& target, const std::string& text);

// Writes a result where --json asked for it; an empty target asks for nothing.
void write_json(const Json& json, const std::string& target);

}  // namespace lockstep::cli
