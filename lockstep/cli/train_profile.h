// What a run leaves in its folder for `lockstep explain` and `scale`.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <optional>

#include "lockstep/cli/train_options.h"
#include "lockstep/explain/explanation.h"
#include "lockstep/train/history.h"

namespace lockstep::cli {

// Writes the profile of a run that has ended, with what was to be expected of several replicas:
// from their step on one device alone, measured for a hundredth of the run's time if that is long
// enough. (`lockstep explain` does it for shorter runs.) Returns what was found out with it, if it
// was. A run without a step has nothing to explain. What goes wrong is a warning on `out`: the run
// itself has succeeded.
std::optional<Explanation> save_profile(std::ostream& out, const History& history,
                                        const TrainOptions& options,
                                        const std::filesystem::path& folder);

}  // namespace lockstep::cli
