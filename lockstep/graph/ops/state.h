// Ops that change variables.
#pragma once

#include "lockstep/graph/graph.h"

namespace lockstep {

// The variable has this value after the step. Nodes that read the variable see the value from
// before the step, whatever their order: the planner sees to it. No outputs.
void assign(const VariableRef& variable, Value value);

}  // namespace lockstep
