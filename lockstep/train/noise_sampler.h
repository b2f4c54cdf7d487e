// NoiseSampler: decides in which steps of fit the norms of gradients are taken for the noise scale
// (explain/noise_scale.h), so that this costs at most 1% of the time, and keeps the estimate.
//
// The cost is measured, not assumed. What runs besides the training step is timed. A training step
// with norms, and the one after it (on a GPU the host does not run ahead across them), are compared
// with the median of the plain steps just before; as steps vary, a sample counts as no less than
// the mean of such differences. Compiling counts, too. A step is sampled if what was spent so far
// and what a sample costs are together at most 1% of the time that steps have taken. Until it is
// known what a sample costs, it is taken for two steps, and compiling for as long as it took for
// the plain step.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "lockstep/explain/noise_scale.h"

namespace lockstep {

class NoiseSampler {
 public:
  // `every`: FitOptions::noise_scale_every.
  explicit NoiseSampler(std::optional<std::int64_t> every) : every_(every) {}

  // Whether the step of this number, counted from the beginning of training, is to be sampled.
  // `compiled`: whether nothing has to be compiled for it.
  bool due(std::int64_t step, bool compiled) const;
  // Whether the caller chose the steps, whatever they cost.
  bool chosen() const { return every_.has_value(); }
  // No more samples from now on.
  void give_up() { every_ = 0; }

  // How long it took to compile a plain step.
  void compiled_plain(double seconds) { plain_compile_ = seconds; }
  // How long it took to compile what a sample needs.
  void compiled_sample(double seconds);
  // How long a sample took that was taken besides the training step.
  void sample_took(double seconds);
  // A step ended so many seconds after the one before it, compiling not counted.
  enum class Step { Plain, WithNorms, BesideSample };
  void step_took(double seconds, Step kind);

  void add(const NoiseSample& sample) { average_.add(sample); }
  std::optional<NoiseScale> estimate() const { return average_.estimate(); }
  double spent_seconds() const { return spent_; }

 private:
  double plain_step() const;  // the median of the last ones
  void spend(double seconds);

  std::optional<std::int64_t> every_;
  NoiseScaleAverage average_;
  double elapsed_ = 0;  // of all steps
  double spent_ = 0;
  std::deque<double> plain_;  // the last plain steps
  int plain_since_ = 0;       // the last sample
  double plain_compile_ = 0;
  std::optional<double> with_norms_;  // how long the last step took, if it had norms
  bool first_run_ = false;            // of what was compiled: not what samples usually cost
  std::optional<double> cost_;        // of a sample, the mean
  std::int64_t costs_ = 0;            // that it is the mean of
};

}  // namespace lockstep
