// Plan: the immutable schedule of a graph on one device: which node runs when, on which stream, and
// where every value is stored. Peak memory is known before the first step.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/graph/backend.h"
#include "lockstep/graph/graph.h"
#include "lockstep/graph/op_def.h"

namespace lockstep {

// Instructions of one stream run in order. Those of the communication stream may run at any time
// after their position in the order of all instructions; an instruction that needs their results,
// or their memory, waits.
inline constexpr int kComputeStream = 0;
inline constexpr int kCommunicationStream = 1;

struct Instruction {
  NodeId node = -1;
  int stream = kComputeStream;
  std::vector<int> waits;  // instructions of the other stream that must have finished
  std::size_t workspace_offset = 0;
  std::size_t workspace_bytes = 0;
  // Of an update whose slots are in host memory: where they are copied to meanwhile.
  std::size_t staging_offset = 0;
  std::size_t staging_bytes = 0;
  Cost cost;
};

// Where a value is stored. All plans of a rank compute in one arena, one after another; inputs,
// which are filled before a run, and outputs, which are read after it, are kept outside it.
enum class Place { Arena, InputOutput, Variable, Constant };
struct Allocation {
  Place place = Place::Arena;
  std::size_t offset = 0;  // in the arena, in the memory of inputs and outputs, or of `of`
  std::size_t bytes = 0;
  ValueId of = -1;  // the variable or constant whose memory it is
};

struct Plan {
  Graph graph;
  std::vector<Instruction> instructions;
  std::vector<Allocation> values;  // by ValueId
  std::size_t arena_bytes = 0;
  std::size_t input_output_bytes = 0;
  std::size_t variable_bytes = 0;
  std::size_t constant_bytes = 0;
  std::size_t host_bytes = 0;  // of variables in host memory, besides variable_bytes
  // The most arena bytes that are live at once: a lower bound for any planner.
  std::size_t live_bytes = 0;

  std::size_t peak_bytes() const {
    return arena_bytes + input_output_bytes + variable_bytes + constant_bytes;
  }
  Cost total_cost() const;
  // Bytes that a rank gives to the collectives of a step; the whole lists, where it has slices.
  std::size_t collective_bytes() const;
};

// Schedules a verified graph. Inputs and outputs have memory of their own, so that they can be
// filled before a step and read after it, whatever other plan runs in between. Nodes that change a
// variable run after all that read it.
Plan make_plan(Graph graph, const Backend& backend);

// The plan as a table: each instruction with op, name, shape, bytes, FLOPs and arena offset;
// totals.
std::string print(const Plan& plan);

}  // namespace lockstep
