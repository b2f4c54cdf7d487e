// From what the stages of a running pipeline counted to a report.
#pragma once

#include "lockstep/data/node.h"
#include "lockstep/data/report.h"

namespace lockstep {

// The figures of every stage below and including `node`.
PipelineReport explain(const DatasetNode& node, Runtime& runtime);

// Fills in which stage limits and what would help.
void judge(PipelineReport& report);

}  // namespace lockstep
