// Writes recorded spans as a trace that Chrome's about:tracing and Perfetto open.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/profile/recorder.h"

namespace lockstep {

// One line (tid) for each track.
std::string trace_text(const Recorder& recorder);
// DataError if the file cannot be written.
void write_trace(const Recorder& recorder, const std::filesystem::path& file);

}  // namespace lockstep
