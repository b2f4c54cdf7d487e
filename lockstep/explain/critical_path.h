// The critical path of a step that was recorded: the chain of spans, through replicas, streams and
// workers, of which each began when the one before it ended, and which determined when the step
// did.
//
// It is found from the dependencies of the plan, from the last span back. What an instruction waits
// for is what its stream did before it, and the collectives that the plan says it needs. A
// collective waits for the last rank that started it: there the path goes on with what that rank
// computed before. How busy anything was does not matter.
#pragma once

#include <string>
#include <vector>

#include "lockstep/explain/run_profile.h"

namespace lockstep {

struct CriticalSpan {
  std::size_t track = 0;  // of the example step
  std::size_t span = 0;   // of the track
};

// From the first to the last; empty if the step has no span of a replica. `plan`: the instructions
// of the step. `aside`: collectives are run by a thread of their own, as between hosts; else the
// ranks run them themselves.
std::vector<CriticalSpan> critical_path(const ExampleStep& step,
                                        const std::vector<PlannedInstruction>& plan, bool aside);

// How much of the step each kind of span on each track was on the path for: the largest first.
struct CriticalShare {
  std::string track;
  int worker = 0;
  SpanKind kind = SpanKind::Compute;
  double seconds = 0;
};
std::vector<CriticalShare> critical_shares(const ExampleStep& step,
                                           const std::vector<CriticalSpan>& path);

}  // namespace lockstep
