// Where a step's time goes, op by op, from the spans that the executor recorded.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/cli/output.h"
#include "lockstep/kernels/kernel.h"
#include "lockstep/plan/plan.h"
#include "lockstep/profile/recorder.h"

namespace lockstep::cli {

struct OpRow {
  std::string op;          // "conv2d"
  std::string kernel;      // "onednn.conv2d"
  std::string name;        // the node's; empty if a row covers several nodes
  std::int64_t calls = 0;  // per step
  double ms = 0;           // per step
  double share = 0;        // of the step's compute time
  double gflops = 0;       // GFLOP/s; 0 if the op has no arithmetic worth counting
};

// The time of each node of the plan that has a kernel: the median over the steps that the track
// still holds. All compute spans on the track must come from executions of this plan, and the last
// execution must be complete.
std::vector<OpRow> node_times(const Plan& plan, const KernelLibrary& library, const Track& track);

// The same from the milliseconds of each instruction of the plan.
std::vector<OpRow> node_times(const Plan& plan, const KernelLibrary& library,
                              const std::vector<double>& ms);

// Summed by op and kernel, the slowest first.
std::vector<OpRow> op_times(const std::vector<OpRow>& nodes);

Json ops_json(const std::vector<OpRow>& rows);
// A table for people.
std::string print(const std::vector<OpRow>& rows, std::size_t most);

}  // namespace lockstep::cli
