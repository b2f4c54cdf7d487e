// Turns the counters of a pipeline's stages into a report.
#pragma once

#include "lockstep/data/pipeline/node.h"
#include "lockstep/data/report.h"

namespace lockstep {

// The figures of `node` and every stage that it reads.
PipelineReport explain(const DatasetNode& node, Runtime& runtime);

// Fills in which stage is the bottleneck and what would help.
void judge(PipelineReport& report);

}  // namespace lockstep
