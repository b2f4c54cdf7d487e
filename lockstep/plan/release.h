// When memory that the communication stream touches is free again.
//
// An instruction of the communication stream may run at any time after its position in the order,
// until the compute stream waits for it. Without such waits, all that it touches (gradients, what
// their update reads, workspaces) is kept until the end of the step. A release is a wait that ends
// this sooner: when the compute stream has handed over bucket b + 2, it waits until bucket b is
// done, and from there on the memory of bucket b can be reused.
//
// What a wait costs: two buckets are then still queued, so the communication stream does not run
// dry while the compute stream waits, and a step that is bound by communication is as fast as
// before. A step with large first buckets and most of its work in the last layers of the backward
// pass (a ResNet over a slow network) could have used that work to hide them, and loses some of
// that overlap. Waits are therefore made only in plans whose arena shrinks by at least a sixteenth,
// and only those that a placement needs (planner.cpp).
#pragma once

#include <span>
#include <vector>

#include "lockstep/graph/graph.h"
#include "lockstep/plan/plan.h"

namespace lockstep {

// The compute stream's instruction `at` waits for the communication stream's instruction `of` and
// all before it.
struct Release {
  int at = 0;
  int of = 0;
};

// All possible releases, in order; none if there are fewer than three buckets, and none before a
// collective of the compute stream: replicas whose plans wait in different places would wait for
// each other there.
std::vector<Release> find_releases(const Graph& graph, std::span<const Instruction> instructions);

// By instruction: the last one in the order at which what it touches is in use. On the compute
// stream that is the instruction itself; on the other, the last one before the compute stream waits
// for it (a release, or a wait of the plan's own), or the number of instructions.
std::vector<int> last_in_use(std::span<const Instruction> instructions,
                             std::span<const Release> releases);

}  // namespace lockstep
