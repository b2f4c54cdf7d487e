// Budget: how much of the machine a pipeline may use.
#pragma once

#include <cstddef>

namespace lockstep {

struct Budget {
  int cores = 0;                 // 0: all of them
  std::size_t memory_bytes = 0;  // for queues, caches and prefetched batches; 0: a quarter of RAM
};

}  // namespace lockstep
