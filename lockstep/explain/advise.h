// Advice: what would make a run faster, and by how much. Every figure comes from a replay of the
// measured step with the change (what_if.h, simulate.h), or from the time that the run lost to what
// the change removes. What would gain little is not advised, nor what the user cannot change.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/explain/run_profile.h"
#include "lockstep/explain/simulate.h"

namespace lockstep {

// What the user of a run can change, and how. A command is that of the run with some flags changed.
struct Adjustable {
  // The command with flags set to other values, {{"--batch-per-replica", "128"}}; an empty value
  // drops the flag. Empty text: there is no such command.
  using Flags = std::vector<std::pair<std::string, std::string>>;
  // The step of the run in another precision, as measured on its device.
  struct Precision {
    std::string name;  // "mixed_bfloat16", "TF32"
    MeasuredStep step;
    Flags flags;
  };

  double memory_bytes = 0;   // of a device; 0: not known
  int devices = 0;           // that could hold a replica, here; 0: not known
  bool balanced = false;     // pieces are already sized by speed
  bool short_words = false;  // gradients already travel as 16-bit numbers
  bool own_program = false;  // the buckets and the input are those of the user's own program
  int input_threads = 0;     // that a stage of the input may have; 0: not known
  double useful_batch = 0;   // samples that the noise scale says a batch may have; 0: not known
  std::vector<Precision> precisions = {};
  std::function<std::string(const Flags&)> command = {};
  // The value of a flag of the run; empty: it was not given.
  std::function<std::string(const std::string& flag)> value = {};
};

// The scenario that the run was: its replicas, hosts and link. The link between hosts is what its
// collectives showed.
Scenario scenario_of(const RunProfile& profile, const MeasuredStep& step);

// The most useful first. `sure` is lower the worse a replay of the run itself meets what was
// measured.
std::vector<Advice> advise(const RunProfile& profile, const MeasuredStep& step,
                           const Explanation& explanation, const Adjustable& adjustable);

}  // namespace lockstep
