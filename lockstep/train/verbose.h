// What fit, evaluate and predict print on standard output. verbose.cpp is the only file outside cli
// that may write there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/callback.h"

namespace lockstep {

// The callbacks of a fit, plus a progress bar if `verbose` asks for one (FitOptions).
std::vector<CallbackRef> with_progress(std::vector<CallbackRef> callbacks,
                                       std::optional<int> verbose);

// Prints a line if `verbose` asks for it (EvaluateOptions).
void show_result(std::optional<int> verbose, const char* caller, const std::string& line);

}  // namespace lockstep
