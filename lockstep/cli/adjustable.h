// What the user of a run can change, and the commands that do it.
#pragma once

#include <filesystem>
#include <string>

#include "lockstep/cli/output.h"
#include "lockstep/explain/advise.h"
#include "lockstep/explain/run_profile.h"

namespace lockstep::cli {

// The command line of a run's record with some flags set to other values, and a folder of its own;
// empty text if the record has none.
std::string command_with(const Json& record, const Adjustable::Flags& flags);

// `record`: the run's. On the GPU of the run, if `measure` says so, its step in other precisions is
// measured and kept in the run's folder.
Adjustable adjustable_of(const RunProfile& profile, const Json& record,
                         const std::filesystem::path& run, bool measure);

}  // namespace lockstep::cli
