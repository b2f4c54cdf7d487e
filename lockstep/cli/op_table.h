// Where a step's time goes, op by op, from the spans that the executor left.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/kernels/kernel.h"
#include "lockstep/plan/plan.h"
#include "lockstep/profile/recorder.h"

namespace lockstep::cli {

struct OpRow {
  std::string op;          // "conv2d"
  std::string kernel;      // "onednn.conv2d"
  std::string name;        // the node's; empty where a row stands for several
  std::int64_t calls = 0;  // in one step
  double ms = 0;           // in one step
  double share = 0;        // of the step's compute time
  double gflops = 0;       // GFLOP a second; 0 where the op has no arithmetic worth counting
};

// The time of each node of the plan that has a kernel: the median over the steps that the track
// still holds. Of compute, nothing but executions of this plan may have been recorded on it, and
// the last of them whole.
std::vector<OpRow> node_times(const Plan& plan, const KernelLibrary& library, const Track& track);

// The same from milliseconds of each step of the plan.
std::vector<OpRow> node_times(const Plan& plan, const KernelLibrary& library,
                              const std::vector<double>& ms);

// The same summed by op and kernel, the slowest first.
std::vector<OpRow> op_times(const std::vector<OpRow>& nodes);

// A table for people.
std::string print(const std::vector<OpRow>& rows, std::size_t most);

}  // namespace lockstep::cli
