// profile.json in a run's folder: what the run recorded about its time (explain/run_profile.h).
#pragma once

#include <filesystem>

#include "lockstep/explain/run_profile.h"

namespace lockstep::cli {

// DataError if there is none, or it is damaged.
RunProfile read_run_profile(const std::filesystem::path& run);
// Replaces it atomically.
void write_run_profile(const std::filesystem::path& run, const RunProfile& profile);

}  // namespace lockstep::cli
