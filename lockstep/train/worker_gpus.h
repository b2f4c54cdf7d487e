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

}  // namespace lockstep
