// How the workers of this host share its cores.
#pragma once

#include <vector>

namespace lockstep::launch {

struct CoreShare {
  std::vector<int> affinity;  // the cores that the worker may run on
  int cores = 1;              // how many of them it should keep busy
};

// The shares of `workers` workers. Each runs on cores of its own as long as there are enough. A
// limit of the control group (`granted`, 0: none) lowers how many cores a worker keeps busy, but
// not where it runs: jobs of several containers would otherwise all run on the first cores.
// `per_worker` 0: as many as there are. UsageError if --cores-per-worker asks for too many.
std::vector<CoreShare> share_cores(const std::vector<int>& cores, int granted, int workers,
                                   int per_worker);

// The same, for the cores and the control group of this process.
std::vector<CoreShare> share_cores_here(int workers, int per_worker);

}  // namespace lockstep::launch
