// Splits a loop over the calling thread's OpenMP threads (Device::make_current sets how many).
#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>

namespace lockstep {

// How many threads a loop gets that has enough work for all of them.
inline int threads_of_a_loop() {
  return omp_in_parallel() ? 1 : omp_get_max_threads();
}

// Calls f(begin, end) for ranges that cover [0, n) without overlap, each of at least `grain`
// iterations, so that small loops stay on the calling thread. f must not throw. If the result must
// not depend on the number of threads, f's work for an index must not depend on the range.
template <class F>
void parallel_for(std::int64_t n, std::int64_t grain, F&& f) {
  const std::int64_t most = n / std::max<std::int64_t>(grain, 1);
  const int threads = static_cast<int>(std::min<std::int64_t>(threads_of_a_loop(), most));
  if (threads <= 1) {
    if (n > 0) f(std::int64_t{0}, n);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const std::int64_t team = omp_get_num_threads();
    const std::int64_t me = omp_get_thread_num();
    const std::int64_t begin = n * me / team;
    const std::int64_t end = n * (me + 1) / team;
    if (begin < end) f(begin, end);
  }
}

}  // namespace lockstep
