// A worker whose computation is a wait: it sleeps for as long as a layer would compute, starts the
// all-reduce of its gradients, and waits for all of them at the end of the step. Many of these fit
// on a few cores.
#pragma once

#include <string>

#include "lockstep/explain/measured_step.h"

namespace lockstep {

struct WaitStep {
  int layers = 8;
  double layer_s = 5e-3;
  std::int64_t layer_bytes = 100'000;
};

// The step as one worker alone measures it here.
MeasuredStep measure_wait_step(const WaitStep& step);

// Takes part in a job (TF_CONFIG); the chief writes {"results": …} with the median step.
void run_wait_worker(const WaitStep& step, int steps, const std::string& json);

}  // namespace lockstep
