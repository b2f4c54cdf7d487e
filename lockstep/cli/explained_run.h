// A run and why it was as fast as it was: what it recorded, its step measured on one device alone,
// and the explanation with its advice.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/explain/critical_path.h"
#include "lockstep/explain/explanation.h"
#include "lockstep/explain/measured_step.h"
#include "lockstep/explain/run_profile.h"
#include "lockstep/explain/scaling_curve.h"

namespace lockstep::cli {

struct ExplainedRun {
  RunProfile profile;
  // What one device does alone; none if the run was on other hardware and did not record it.
  std::optional<MeasuredStep> alone;
  std::string why_not_alone;  // then
  Explanation explanation;
  // Of the latest typical step: what determined how long it took, in fractions of it.
  std::vector<CriticalShare> critical;
  // On other numbers of replicas, and how much sooner a loss is reached there, as far as known.
  ScalingCurve curve;
  std::optional<LossOutlook> outlook;
};

// Measures, unless told not to, what the run has not recorded, if this is the hardware of the run,
// and keeps it in the run's folder. DataError if the folder does not hold a profile.
ExplainedRun explain_run(const std::filesystem::path& run, bool measure);

// Measures the step of a run that has just ended, on its first device alone, in about so many
// seconds, keeps it in the run's folder, puts what was to be expected of several replicas into the
// profile, and explains it. Nothing if the run was on other hardware.
std::optional<Explanation> hold_to_account(RunProfile& profile, const std::filesystem::path& run,
                                           double seconds);

}  // namespace lockstep::cli
