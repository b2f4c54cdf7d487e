// The progress of a run for people: a view of several lines, or one line.
#pragma once

#include <string>

#include "lockstep/cli/explain_charts.h"
#include "lockstep/cli/progress_file.h"

namespace lockstep::cli {

// Each line ends in a newline; none is wider than the style says.
std::string progress_view(const ProgressFile& file, const std::string& run,
                          const TerminalStyle& style);
std::string progress_line(const RunProgress& progress);

}  // namespace lockstep::cli
