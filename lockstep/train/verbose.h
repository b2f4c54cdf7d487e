// What fit, evaluate and predict show by themselves, on standard output. verbose.cpp is the one
// file outside cli that may write there.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/train/callback.h"

namespace lockstep {

// The callbacks of a fit, with a progress bar among them where `verbose` asks for one (FitOptions).
std::vector<CallbackRef> with_progress(std::vector<CallbackRef> callbacks,
                                       std::optional<int> verbose);

// Shows a line where `verbose` asks for it (EvaluateOptions).
void show_result(std::optional<int> verbose, const std::string& line);

}  // namespace lockstep
