// The work of one rank in one round: its slice, for all ranks.
#pragma once

#include <span>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/local/round.h"

namespace lockstep {

// Whether elements of this type can be added: numbers of 16 bits or more.
bool can_add(DType dtype);

// The order of sums, which is the same for threads, processes and hosts. The ranks of a worker are
// added in their order. The sums of the workers are added in the order of the workers; where more
// than kWorkersInOrder hold ranks, as a tree: of so many consecutive workers each, then of so many
// of those sums, and so on. 16-bit numbers are added in f32, and rounded once in the sum of a
// worker and once at the end; integers wrap around.
inline constexpr int kWorkersInOrder = 16;

// Does the work of `rank`, a thread of one worker, in the round that `rounds` (one per rank, in
// agreement) describe. All ranks' memory is ready; other ranks do their slices at the same time.
// Large slices use the calling thread's OpenMP threads.
void do_slice(std::span<const Round> rounds, int rank) noexcept;

// The sums of the elements of `slice` over workers that hold so many ranks each, into the memory of
// rank `to` only.
void sum_slice(std::span<const Round> rounds, std::span<const int> ranks_of_worker, Slice slice,
               int to) noexcept;
// The same of the ranks of one worker.
void sum_slice(std::span<const Round> rounds, Slice slice, int to) noexcept;

}  // namespace lockstep
