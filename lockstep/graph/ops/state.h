// Ops that change variables.
#pragma once

#include "lockstep/graph/graph.h"

namespace lockstep {

// The variable has this value after the step. Nodes that read the variable see the value from
// before the step, whatever their order: the planner sees to it. No outputs.
void assign(const VariableRef& variable, Value value);

// Whether a node is an assignment, alone or with what computes its value: it comes behind all else
// in a step.
bool is_assignment(const Node& node);

// The variables (as values) that a node changes.
std::vector<ValueId> changed_variables(const Node& node);

}  // namespace lockstep
