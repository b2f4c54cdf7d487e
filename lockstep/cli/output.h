// Where the results of a command go: --json and --trace.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lockstep::cli {

// Keys stay in the order in which they are set: people read these files too.
using Json = nlohmann::ordered_json;

// "-" and the system's own names for it, such as /dev/stdout.
bool is_standard_output(const std::string& target);

// UsageError if the target of a flag cannot be written. Called before the work starts, so that a
// wrong path does not cost an hour.
void check_target(const char* flag, const std::string& target);

// Writes the text to the target of a flag: to standard output; to a file, following symbolic links,
// whole or not at all; or straight to a device or a pipe. DataError, naming flag and target, if
// that fails.
void write_target(const char* flag, const std::string& target, const std::string& text);

// Writes a result to the target of --json; does nothing if that is empty.
void write_json(const Json& json, const std::string& target);

}  // namespace lockstep::cli
