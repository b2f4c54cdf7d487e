// Writes recorded spans as a trace that Chrome's about:tracing and Perfetto open.
#pragma once

#include <filesystem>

#include "lockstep/profile/recorder.h"

namespace lockstep {

// One line (tid) for each track. DataError where the file cannot be written.
void write_trace(const Recorder& recorder, const std::filesystem::path& file);

}  // namespace lockstep
