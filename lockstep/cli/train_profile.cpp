#include "lockstep/cli/train_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "lockstep/base/error.h"
#include "lockstep/cli/explained_run.h"
#include "lockstep/cli/interrupt.h"
#include "lockstep/cli/run_profile_file.h"

namespace lockstep::cli {
namespace {

std::optional<Explanation> measure_alone(std::ostream& out, RunProfile& profile,
                                         const std::filesystem::path& folder) {
  constexpr double kShare = 0.01;
  constexpr double kMostSeconds = 4;
  constexpr double kSteps = 30;  // of the run, that measuring takes at least
  const double seconds = std::min(kMostSeconds, kShare * profile.seconds);
  if (seconds < kSteps * profile.step_s || caught_signal() != 0) return std::nullopt;
  try {
    return hold_to_account(profile, folder, seconds);
  } catch (const Error& error) {
    out << fmt::format("note: one device alone could not be measured: {}\n", error.what());
    return std::nullopt;
  }
}

}  // namespace

std::optional<Explanation> save_profile(std::ostream& out, const History& history,
                                        const TrainOptions& options,
                                        const std::filesystem::path& folder) {
  if (history.profile == nullptr || history.steps == 0) return std::nullopt;
  RunProfile profile = *history.profile;
  profile.model = options.model;
  profile.precision = options.placement.precision;
  profile.global_batch = options.batch.global;
  std::optional<Explanation> explanation = measure_alone(out, profile, folder);
  try {
    write_run_profile(folder, profile);
  } catch (const DataError& error) {
    out << fmt::format("warning: {}; the run cannot be explained later\n", error.what());
  }
  return explanation;
}

}  // namespace lockstep::cli
