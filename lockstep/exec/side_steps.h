// Which steps of a plan run beside the others. Where steps take a few microseconds each, what a
// device needs is fewer of them one behind the other: those that nobody waits for soon (gradients
// of weights and biases, while the backward pass goes on) go to a second stream. Memory decides who
// waits for whom: the plan lays values over one another as if steps ran in their order. Plans of
// long steps are left as they are.
#pragma once

#include <vector>

#include "lockstep/exec/plan_memory.h"
#include "lockstep/plan/plan.h"

namespace lockstep {

// By step; each stream runs its steps in the plan's order. The communication stream counts as part
// of the first.
struct SideSteps {
  std::vector<bool> beside;  // runs on the second stream
  std::vector<bool> forks;   // the second stream waits for the first behind this step
  std::vector<bool> joins;   // the first stream waits for the second before this step
  bool any = false;          // then the second waits for the first before all steps, too
};

SideSteps find_side_steps(const Plan& plan, const PlanMemory& memory);

}  // namespace lockstep
