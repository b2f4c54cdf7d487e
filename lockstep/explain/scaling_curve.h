// What a run would be on other numbers of replicas with pieces of the same size, beside what it
// was; and how much sooner it would reach a loss there.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/explain/learning.h"
#include "lockstep/explain/measured_step.h"
#include "lockstep/explain/run_profile.h"

namespace lockstep {

struct ScalingPoint {
  int replicas = 1;
  double batch = 0;                     // global
  double step_s = 0;                    // predicted
  double speed_up = 1;                  // the same: over one replica
  std::optional<double> measured = {};  // speed-up of the run's median step
};

struct ScalingCurve {
  std::vector<ScalingPoint> points;  // by replicas, from one on
  // The network that was taken for replicas on other hosts, where the run did not measure it.
  std::string assumed;
};
// On 1, 2, 4, … replicas and as many as the run had. Empty for a run without steps.
ScalingCurve scaling_curve(const RunProfile& profile, const MeasuredStep& alone);

// How much sooner a loss is reached: each point against the first.
struct LossOutlook {
  NoiseScale noise;
  std::vector<TimeToLoss> points;
  // The learning rate that goes with the batch of each; 0: that of the run is not known.
  std::vector<double> rates;
  std::optional<ScalePoint> largest;  // that pays
};
// Nothing if the run has not measured a noise scale, or there is no point. `batch`: the run's,
// for which its learning rate is right.
std::optional<LossOutlook> loss_outlook(const Learning& learning, double batch,
                                        std::span<const ScalePoint> points);
std::optional<LossOutlook> loss_outlook(const RunProfile& profile, const ScalingCurve& curve);

// As a table with a sentence below it.
std::string text_of(const LossOutlook& outlook);
// "The largest batch that pays is …": what the table says, in one sentence.
std::string sentence_of(const LossOutlook& outlook);

}  // namespace lockstep
