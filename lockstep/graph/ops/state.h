// Ops that change variables.
#pragma once

#include "lockstep/graph/graph.h"

namespace lockstep {

// The variable has this value after the step. Nodes that read the variable see the value from
// before the step, whatever their order; the planner ensures this. No outputs.
void assign(const VariableRef& variable, Value value);

// Whether a node is an assignment, alone or fused with the computation of its value. Assignments
// come last in a step.
bool is_assignment(const Node& node);

// The variables (as values) that a node changes.
std::vector<ValueId> changed_variables(const Node& node);

}  // namespace lockstep
