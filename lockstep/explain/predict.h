// predict: a step of N replicas as a job would run it: its gradients are cut into buckets for the
// links between the replicas, as World::buckets does it, and then it is simulated.
#pragma once

#include "lockstep/distribute/buckets.h"
#include "lockstep/explain/simulate.h"

namespace lockstep {

// What a job would choose after measuring a small and a large all-reduce.
BucketSizes predicted_buckets(const MeasuredStep& step, const Scenario& scenario);

// On one host of CPUs the buckets are those of the measured plan: they were chosen there.
SimulatedStep predict(const MeasuredStep& step, const Scenario& scenario);

}  // namespace lockstep
