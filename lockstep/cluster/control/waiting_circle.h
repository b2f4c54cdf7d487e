// Workers that wait for one another in a circle: two of them, where the link between them is down.
#pragma once

#include <span>
#include <vector>

namespace lockstep {

// `waits_for`, by worker: for whom it waits; a number that is none of a worker: nobody knows.
// Returns the workers of the shortest circle, beginning with the lowest; empty if there is none.
std::vector<int> find_waiting_circle(std::span<const int> waits_for);

}  // namespace lockstep
