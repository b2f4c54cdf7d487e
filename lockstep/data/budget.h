// Budget: what a pipeline may use of the machine.
#pragma once

#include <cstddef>

namespace lockstep {

struct Budget {
  int cores = 0;                 // 0: the machine's
  std::size_t memory_bytes = 0;  // for queues, caches and batches made ahead; 0: a quarter of it
};

}  // namespace lockstep
