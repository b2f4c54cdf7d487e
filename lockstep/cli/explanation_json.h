// Where time went, as `--json` of several commands writes it.
#pragma once

#include "lockstep/cli/command.h"
#include "lockstep/explain/explanation.h"
#include "lockstep/explain/scaling_curve.h"
#include "lockstep/train/history.h"

namespace lockstep::cli {

// {"compute": …, "communication": …}, in fractions.
Json attribution_json(const Attribution& attribution);
// Of `explain` and `bench --explain`.
Json explanation_json(const Explanation& explanation);
// [{"replicas", "batch", "step_ms", "speed_up", "measured"}]: predicted, and measured where it was.
Json scaling_json(const ScalingCurve& curve);
// {"noise_scale": {"value", "low", "high"}, "points": [{"devices", "batch", "faster", "steps",
// "sooner", "sooner_low", "sooner_high", "learning_rate"}], "largest": {"devices", "batch"}}; what
// is infinite is null.
Json outlook_json(const LossOutlook& outlook);

}  // namespace lockstep::cli
