// Advice, held to account by following it.
#pragma once

#include "bench/prediction/advice_table.h"

namespace lockstep {

// Runs with something to gain: what is advised for each is done, and the gain that was predicted is
// compared with the one that was measured.
void follow_advice(int rounds);

// Its rows of runs in a program of one's own: input that is slow, callbacks and checkpoints that
// take long.
void follow_advice_in_fit(AdviceTable& table, int rounds);

}  // namespace lockstep
