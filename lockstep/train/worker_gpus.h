// Which GPUs of its host a worker trains on.
#pragma once

#include <string>
#include <vector>

namespace lockstep {

// Positions in this worker's own list. `seen`: for every worker the UUIDs of the GPUs that it sees,
// in its order. Workers that see the same ones divide them, as evenly as they go; a launcher may
// have divided them already. UsageError, on all workers, where there are fewer GPUs than workers,
// unless these may share them.
std::vector<int> own_gpus(const std::vector<std::vector<std::string>>& seen, int worker,
                          bool share_gpus);

// The names of a worker's devices, one for each of its replicas: of the GPUs that are its own, by
// their indices, or where it has none parts of its cores. 0 replicas: one on each GPU, or one.
// UsageError where it has fewer GPUs than replicas.
std::vector<std::string> devices_of_replicas(const std::vector<int>& gpus, int replicas,
                                             int worker);

}  // namespace lockstep
