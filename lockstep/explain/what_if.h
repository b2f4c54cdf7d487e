// What-ifs: a measured step as it would be after a change. Pure functions; simulate() replays the
// result. What concerns other replicas and the network is in Scenario.
#pragma once

#include <map>
#include <string>

#include "lockstep/distribute/buckets.h"
#include "lockstep/explain/measured_step.h"

namespace lockstep {

// Pieces of so many samples.
MeasuredStep with_batch(const MeasuredStep& step, std::int64_t batch);

// The gradients cut into buckets of other sizes, each with its update, as the pass Bucket does it.
// Steps whose gradients are reduce-scattered stay as they are.
MeasuredStep with_buckets(const MeasuredStep& step, BucketSizes sizes);

// Gradients travel as 16-bit numbers.
MeasuredStep with_16_bit_gradients(const MeasuredStep& step);

// The gradients of `micro_batches` pieces of the batch are added up before they are communicated:
// so many times as many samples per step, and the memory of one piece.
MeasuredStep with_accumulation(const MeasuredStep& step, int micro_batches);

// Computation by these factors, by op: what another precision or device gives. Ops that are not
// named take `otherwise`.
using OpRatios = std::map<std::string, double>;
MeasuredStep with_ratios(const MeasuredStep& step, const OpRatios& ratios, double otherwise);
// Seconds of the second over seconds of the first, by op, for as many samples.
OpRatios ratios_between(const MeasuredStep& first, const MeasuredStep& second);

// A device that is so many times as fast in all it computes.
MeasuredStep with_faster_device(const MeasuredStep& step, double times);

// Steps that do not vary: the jitter is gone.
MeasuredStep without_jitter(const MeasuredStep& step);

}  // namespace lockstep
