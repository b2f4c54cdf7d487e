// The work of one rank in one round: its slice, for all ranks.
#pragma once

#include <span>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/local/round.h"

namespace lockstep {

// Whether elements of this type can be added: numbers of 16 bits or more.
bool can_add(DType dtype);

// Does the work of `rank` in the round that `rounds` (one per rank, in agreement) describe. All
// ranks' memory is ready; other ranks do their slices at the same time. Large slices use the
// calling thread's OpenMP threads. Sums are added in the order of the ranks, 16-bit ones in f32 and
// rounded once; integers wrap around.
void do_slice(std::span<const Round> rounds, int rank) noexcept;

// The sums of the elements of `slice`, added in the same way, into the memory of rank `to` only.
void sum_slice(std::span<const Round> rounds, Slice slice, int to) noexcept;

}  // namespace lockstep
