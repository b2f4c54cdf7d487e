// The work of one rank in one round: its share, for all ranks.
#pragma once

#include <span>

#include "lockstep/comm/local/round.h"

namespace lockstep {

// Whether elements of this type can be added up: numbers of 16 bits and more.
bool can_add(DType dtype);

// Does what `rank` owes to the round that `rounds` (one for each rank, in agreement) describe. All
// ranks' memory is ready; other ranks do their shares at the same time. Large shares use the
// calling thread's OpenMP threads. Sums are added in the order of the ranks, 16-bit ones in f32 and
// rounded once; integers wrap around.
void do_share(std::span<const Round> rounds, int rank) noexcept;

}  // namespace lockstep
