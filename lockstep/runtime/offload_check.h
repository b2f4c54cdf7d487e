// Whether a step whose optimizer's state is in host memory (passes/offload.h) would wait for the
// bus: the state goes to the device and back in every step, beside the computation, which hides it
// only if it takes as long. Both are measured before the first step; nothing is assumed about the
// device.
#pragma once

#include <optional>
#include <string>

#include "lockstep/kernels/kernel.h"
#include "lockstep/plan/plan.h"

namespace lockstep {

struct OffloadRates {
  double bus_bytes_per_s = 0;     // between host and device, each way, both ways at once
  double flops = 0;               // per second, in a large matrix product
  double memory_bytes_per_s = 0;  // of the device, read and written
};

// In some milliseconds, with 128 MiB of the device's memory; `precision` is the 16-bit type, in
// mixed precision.
OffloadRates measure_offload(Device& device, const KernelLibrary& kernels,
                             std::optional<DType> precision);

// How long a plan computes besides updating what is in host memory: each instruction as long as its
// arithmetic or its bytes need, whichever is more.
double compute_seconds(const Plan& plan, const OffloadRates& rates);

// UsageError, with all figures, if a plan's copies take longer than its computation.
void expect_offload_keeps_up(const Plan& plan, const OffloadRates& rates,
                             const std::string& device);

}  // namespace lockstep
