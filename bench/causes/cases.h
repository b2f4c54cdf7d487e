// The rows of the table: causes in runs of two replicas in this process, and in runs of the
// program.
#pragma once

#include "bench/causes/table.h"

namespace lockstep {

// Slow replica, slow input, callbacks, checkpoints, validation, a long start, and pairs of them.
void fit_cases(CauseTable& table, int rounds);
// Tiny batches, and whether a clean run gets advice: `lockstep train` and `lockstep explain`.
void program_cases(CauseTable& table, int rounds);
// A shaped link between two workers, alone and with other causes; needs root.
void link_cases(CauseTable& table, int rounds);

}  // namespace lockstep
