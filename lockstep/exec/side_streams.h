// Which instructions of a plan run on a side stream. Where instructions take a few microseconds
// each, a device needs a shorter chain of them: those whose results are not needed soon (gradients
// of weights and biases, while the backward pass continues) go to a second stream. Memory decides
// who waits for whom, because the plan reuses memory as if instructions ran in order. Plans of long
// instructions are left as they are.
#pragma once

#include <vector>

#include "lockstep/exec/plan_memory.h"
#include "lockstep/plan/plan.h"

namespace lockstep {

// By instruction; each stream runs its instructions in the plan's order. The communication stream
// counts as part of the first.
struct SideStreams {
  std::vector<bool> beside;  // runs on the second stream
  std::vector<bool> forks;   // the second stream waits for the first after this instruction
  std::vector<bool> joins;   // the first stream waits for the second before this instruction
  bool any = false;          // then the second also waits for the first before all instructions
};

SideStreams find_side_streams(const Plan& plan, const PlanMemory& memory);

}  // namespace lockstep
