// Plan: the immutable schedule of a graph on one device. Which node runs when, on which stream,
// and where every value lies. Peak memory is known before the first step.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/graph/backend.h"
#include "lockstep/graph/graph.h"
#include "lockstep/graph/op_def.h"

namespace lockstep {

// Steps of one stream run in their order. Those of the communication stream may run at any time
// behind their place in the order of all steps; whoever needs them waits.
inline constexpr int kComputeStream = 0;
inline constexpr int kCommunicationStream = 1;

struct PlanStep {
  NodeId node = -1;
  int stream = kComputeStream;
  std::vector<int> waits;  // steps of other streams that must have ended
  std::size_t workspace_offset = 0;
  std::size_t workspace_bytes = 0;
  Cost cost;
};

// Where a value lies.
enum class Place { Arena, Variable, Constant };
struct Allocation {
  Place place = Place::Arena;
  std::size_t offset = 0;  // in the arena
  std::size_t bytes = 0;
};

struct Plan {
  Graph graph;
  std::vector<PlanStep> steps;
  std::vector<Allocation> values;  // by ValueId
  std::size_t arena_bytes = 0;
  std::size_t variable_bytes = 0;
  std::size_t constant_bytes = 0;
  // The most arena bytes that are live at once: what no planner could do without.
  std::size_t live_bytes = 0;

  std::size_t peak_bytes() const { return arena_bytes + variable_bytes + constant_bytes; }
  Cost total_cost() const;
};

// Schedules a verified graph. Inputs and outputs keep their memory for the whole step, so that they
// can be filled before it and read after it. Nodes that change a variable run behind all that read
// it.
Plan make_plan(Graph graph, const Backend& backend);

// The plan as a table: each step with op, name, shape, bytes, FLOPs and arena offset; totals.
std::string print(const Plan& plan);

}  // namespace lockstep
