// How fast a device computes and moves bytes, and what follows from that for a plan that has never
// run: each instruction takes as long as its arithmetic or its bytes need, whichever is more (the
// roofline model: Williams, Waterman and Patterson 2009). Plans of the same model are compared well
// that way; how long one takes, only roughly.
#pragma once

#include "lockstep/explain/measured_step.h"
#include "lockstep/plan/plan.h"

namespace lockstep {

struct DeviceRates {
  double flops = 0;        // per second, in large matrix products
  double bytes_per_s = 0;  // read and written
  double launch_s = 0;     // of an instruction that does next to nothing
};

// The step of a plan, each instruction with the time that the rates give it; collectives have none.
MeasuredStep estimated_step(const Plan& plan, const DeviceRates& rates);

}  // namespace lockstep
