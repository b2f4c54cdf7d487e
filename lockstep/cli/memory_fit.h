// --fit: which options make a training step fit into memory.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/cli/command.h"
#include "lockstep/cli/step_run.h"
#include "lockstep/train/memory_proposal.h"
#include "lockstep/train/model.h"

namespace lockstep::cli {

// Has a compiled model choose its options for such a global batch, and returns them as flags, so
// that a run that is resumed keeps them.
MemoryFlags fitted(const Model& model, const Task& task, std::int64_t batch);

// The proposal for a model by name; `fit` is "auto" or bytes.
MemoryProposal propose(const Strategy& strategy, const StepRunOptions& options,
                       const std::string& fit);

// A table of all combinations that were planned, and the flags of the one to take.
void print_proposal(const MemoryProposal& proposal);
Json proposal_json(const MemoryProposal& proposal);

}  // namespace lockstep::cli
