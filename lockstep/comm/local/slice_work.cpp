// Reducing and copying slices.
//
// A rank adds its slice of all ranks' memory and writes the sums back to the same cache lines:
// every line is read once and written once, which is the least traffic possible, and there is no
// second phase. Up to eight ranks are added in one loop over as many streams, which is about twice
// as fast as the way for more ranks: a block of sums that stays in the L1 cache. Workers of several
// ranks, and more workers than are added in their order, take blocks as well.
#include "lockstep/comm/local/slice_work.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/base/vectorized.h"
#include "lockstep/comm/local/element.h"
#include "lockstep/device/cpu/parallel.h"

namespace lockstep {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kSumBlock = 1024;                    // elements added before they are written
constexpr std::size_t kCopyBlock = std::size_t{16} << 10;  // bytes copied to one rank after another
constexpr std::int64_t kLinesForAThread = (std::int64_t{128} << 10) / kLine;
constexpr int kToAll = -1;

template <class T>
LOCKSTEP_INLINE T* elements_of(const Round& round) {
  return reinterpret_cast<T*>(round.data);
}

// The memory of all ranks is distinct, and an element is written after the reads of the same
// element: the loop has no dependence between elements.
template <class E, std::size_t... I>
LOCKSTEP_INLINE void sum_in_one_loop(std::span<const Round> rounds, int to, std::size_t begin,
                                     std::size_t end, std::index_sequence<0, I...>) {
  using T = typename E::T;
  using Sum = typename E::Sum;
  T* const first = elements_of<T>(rounds[0]);
  T* const others[] = {elements_of<T>(rounds[I])...};
  if (to != kToAll) {
    T* const only = elements_of<T>(rounds[static_cast<std::size_t>(to)]);
#pragma omp simd
    for (std::size_t i = begin; i < end; ++i) {
      Sum sum = E::widen(first[i]);
      ((sum += E::widen(others[I - 1][i])), ...);
      only[i] = E::narrow(sum);
    }
    return;
  }
#pragma omp simd
  for (std::size_t i = begin; i < end; ++i) {
    Sum sum = E::widen(first[i]);
    ((sum += E::widen(others[I - 1][i])), ...);
    const T result = E::narrow(sum);
    first[i] = result;
    ((others[I - 1][i] = result), ...);
  }
}

template <class E>
LOCKSTEP_INLINE void sum_in_blocks(std::span<const Round> rounds, int to, std::size_t begin,
                                   std::size_t end) {
  using T = typename E::T;
  alignas(kLine) typename E::Sum sums[kSumBlock];
  alignas(kLine) T results[kSumBlock];
  for (std::size_t at = begin; at < end; at += kSumBlock) {
    const std::size_t count = std::min(kSumBlock, end - at);
    const T* first = elements_of<T>(rounds[0]) + at;
    for (std::size_t i = 0; i < count; ++i) sums[i] = E::widen(first[i]);
    for (std::size_t rank = 1; rank < rounds.size(); ++rank) {
      const T* next = elements_of<T>(rounds[rank]) + at;
      for (std::size_t i = 0; i < count; ++i) sums[i] += E::widen(next[i]);
    }
    for (std::size_t i = 0; i < count; ++i) results[i] = E::narrow(sums[i]);
    if (to != kToAll) {
      std::memcpy(elements_of<T>(rounds[static_cast<std::size_t>(to)]) + at, results,
                  count * sizeof(T));
      continue;
    }
    for (const Round& round : rounds) {
      std::memcpy(elements_of<T>(round) + at, results, count * sizeof(T));
    }
  }
}

// Sums of workers, then of so many workers, then of so many of those, each as far as it has come.
// Enough for every int.
constexpr std::size_t kLevels = 8;

// A block of elements whose sums are made worker after worker.
template <class E>
class WorkerSums {
 public:
  explicit WorkerSums(std::size_t count) : count_(count) {}

  LOCKSTEP_INLINE void add_worker(std::span<const Round> ranks, std::size_t at) {
    using T = typename E::T;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      const T* next = elements_of<T>(ranks[rank]) + at;
      if (rank == 0) {
        for (std::size_t i = 0; i < count_; ++i) worker_[i] = E::widen(next[i]);
      } else {
        for (std::size_t i = 0; i < count_; ++i) worker_[i] += E::widen(next[i]);
      }
    }
    if (ranks.size() > 1) {
      for (std::size_t i = 0; i < count_; ++i) worker_[i] = E::widen(E::narrow(worker_[i]));
    }
    add(0, worker_);
  }

  LOCKSTEP_INLINE void finish(typename E::T* results) {
    std::size_t top = 0;
    for (; more_above(top); ++top) {
      if (added_[top] > 0) add(top + 1, sums_[top]);
    }
    for (std::size_t i = 0; i < count_; ++i) results[i] = E::narrow(sums_[top][i]);
  }

 private:
  using Sum = typename E::Sum;

  bool more_above(std::size_t level) const {
    return std::any_of(added_ + level + 1, added_ + kLevels, [](int added) { return added > 0; });
  }

  LOCKSTEP_INLINE void add(std::size_t level, const Sum* next) {
    // The levels that are full move up first, the highest of them before the others.
    std::size_t full = level;
    while (added_[full] == kWorkersInOrder) ++full;
    for (; full > level; --full) {
      add_to(full, sums_[full - 1]);
      added_[full - 1] = 0;
    }
    add_to(level, next);
  }

  LOCKSTEP_INLINE void add_to(std::size_t level, const Sum* next) {
    Sum* const sums = sums_[level];
    if (added_[level]++ == 0) {
      for (std::size_t i = 0; i < count_; ++i) sums[i] = next[i];
    } else {
      for (std::size_t i = 0; i < count_; ++i) sums[i] += next[i];
    }
  }

  std::size_t count_;
  int added_[kLevels] = {};
  alignas(kLine) Sum worker_[kSumBlock];
  alignas(kLine) Sum sums_[kLevels][kSumBlock];
};

template <class E>
LOCKSTEP_INLINE void sum_over_workers(std::span<const Round> rounds,
                                      std::span<const int> ranks_of_worker, int to,
                                      std::size_t begin, std::size_t end) {
  using T = typename E::T;
  alignas(kLine) T results[kSumBlock];
  for (std::size_t at = begin; at < end; at += kSumBlock) {
    const std::size_t count = std::min(kSumBlock, end - at);
    WorkerSums<E> sums(count);
    std::span<const Round> rest = rounds;
    for (const int ranks : ranks_of_worker) {
      if (ranks == 0) continue;
      sums.add_worker(rest.first(static_cast<std::size_t>(ranks)), at);
      rest = rest.subspan(static_cast<std::size_t>(ranks));
    }
    sums.finish(results);
    std::memcpy(elements_of<T>(rounds[static_cast<std::size_t>(to)]) + at, results,
                count * sizeof(T));
  }
}

// Writes the sums of [begin, end) to the memory of rank `to`, or of all. Without
// `ranks_of_worker`, ranks are added in their order.
template <class E>
LOCKSTEP_INLINE void sum_elements(std::span<const Round> rounds,
                                  std::span<const int> ranks_of_worker, int to, std::size_t begin,
                                  std::size_t end) {
  if (!ranks_of_worker.empty()) {
    return sum_over_workers<E>(rounds, ranks_of_worker, to, begin, end);
  }
  switch (rounds.size()) {
    case 2:
      return sum_in_one_loop<E>(rounds, to, begin, end, std::make_index_sequence<2>());
    case 3:
      return sum_in_one_loop<E>(rounds, to, begin, end, std::make_index_sequence<3>());
    case 4:
      return sum_in_one_loop<E>(rounds, to, begin, end, std::make_index_sequence<4>());
    case 5:
      return sum_in_one_loop<E>(rounds, to, begin, end, std::make_index_sequence<5>());
    case 6:
      return sum_in_one_loop<E>(rounds, to, begin, end, std::make_index_sequence<6>());
    case 7:
      return sum_in_one_loop<E>(rounds, to, begin, end, std::make_index_sequence<7>());
    case 8:
      return sum_in_one_loop<E>(rounds, to, begin, end, std::make_index_sequence<8>());
    default:
      return sum_in_blocks<E>(rounds, to, begin, end);
  }
}

using SumLoop = void (*)(std::span<const Round> rounds, std::span<const int> ranks_of_worker,
                         int to, std::size_t begin, std::size_t end);

LOCKSTEP_VECTORIZED void sum_f32(std::span<const Round> rounds,
                                 std::span<const int> ranks_of_worker, int to, std::size_t begin,
                                 std::size_t end) {
  sum_elements<PlainElement<float>>(rounds, ranks_of_worker, to, begin, end);
}

LOCKSTEP_VECTORIZED void sum_f64(std::span<const Round> rounds,
                                 std::span<const int> ranks_of_worker, int to, std::size_t begin,
                                 std::size_t end) {
  sum_elements<PlainElement<double>>(rounds, ranks_of_worker, to, begin, end);
}

LOCKSTEP_VECTORIZED void sum_i32(std::span<const Round> rounds,
                                 std::span<const int> ranks_of_worker, int to, std::size_t begin,
                                 std::size_t end) {
  sum_elements<PlainElement<std::uint32_t>>(rounds, ranks_of_worker, to, begin, end);
}

LOCKSTEP_VECTORIZED void sum_i64(std::span<const Round> rounds,
                                 std::span<const int> ranks_of_worker, int to, std::size_t begin,
                                 std::size_t end) {
  sum_elements<PlainElement<std::uint64_t>>(rounds, ranks_of_worker, to, begin, end);
}

LOCKSTEP_VECTORIZED void sum_f16(std::span<const Round> rounds,
                                 std::span<const int> ranks_of_worker, int to, std::size_t begin,
                                 std::size_t end) {
  sum_elements<SmallElement<F16Format>>(rounds, ranks_of_worker, to, begin, end);
}

LOCKSTEP_VECTORIZED void sum_bf16(std::span<const Round> rounds,
                                  std::span<const int> ranks_of_worker, int to, std::size_t begin,
                                  std::size_t end) {
  sum_elements<SmallElement<BF16Format>>(rounds, ranks_of_worker, to, begin, end);
}

SumLoop sum_loop_of(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return sum_f32;
    case DType::F64:
      return sum_f64;
    case DType::I32:
      return sum_i32;
    case DType::I64:
      return sum_i64;
    case DType::F16:
      return sum_f16;
    case DType::BF16:
      return sum_bf16;
    case DType::U8:
    case DType::Bool:
      return nullptr;
  }
  return nullptr;
}

// From one rank's memory to all others'.
void copy_elements(std::span<const Round> rounds, std::size_t from, std::size_t begin,
                   std::size_t end) {
  // memcpy knows best how to copy to one receiver; several share each block while it is in a
  // cache.
  const std::size_t block = rounds.size() == 2 ? end - begin : kCopyBlock;
  for (std::size_t at = begin; at < end; at += block) {
    const std::size_t count = std::min(block, end - at);
    for (std::size_t to = 0; to < rounds.size(); ++to) {
      if (to != from) std::memcpy(rounds[to].data + at, rounds[from].data + at, count);
    }
  }
}

// Calls work(begin, end) for ranges of a slice, cut at cache lines, one range per thread.
template <class Work>
void in_ranges(Slice slice, std::size_t element_bytes, const Work& work) {
  const std::size_t line = kLine / element_bytes;
  const std::size_t lines = (slice.end - slice.begin + line - 1) / line;
  parallel_for(static_cast<std::int64_t>(lines), kLinesForAThread,
               [&](std::int64_t begin, std::int64_t end) {
                 work(slice.begin + static_cast<std::size_t>(begin) * line,
                      std::min(slice.begin + static_cast<std::size_t>(end) * line, slice.end));
               });
}

}  // namespace

bool can_add(DType dtype) {
  return sum_loop_of(dtype) != nullptr;
}

void sum_slice(std::span<const Round> rounds, std::span<const int> ranks_of_worker, Slice slice,
               int to) noexcept {
  if (rounds.size() == 1) return;
  const auto workers = std::ranges::count_if(ranks_of_worker, [](int ranks) { return ranks > 0; });
  const bool one_each = std::ranges::all_of(ranks_of_worker, [](int ranks) { return ranks <= 1; });
  if (workers <= 1 || (one_each && workers <= kWorkersInOrder)) ranks_of_worker = {};
  const DType dtype = rounds.front().dtype;
  const SumLoop sum = sum_loop_of(dtype);
  in_ranges(slice, size_of(dtype), [&](std::size_t begin, std::size_t end) {
    sum(rounds, ranks_of_worker, to, begin, end);
  });
}

void sum_slice(std::span<const Round> rounds, Slice slice, int to) noexcept {
  sum_slice(rounds, {}, slice, to);
}

void do_slice(std::span<const Round> rounds, int rank) noexcept {
  const Round& mine = rounds[static_cast<std::size_t>(rank)];
  const int size = static_cast<int>(rounds.size());
  if (size == 1 || mine.bytes == 0) return;
  const std::size_t element_bytes = size_of(mine.dtype);
  const Slice slice = slice_of(mine.elements(), element_bytes, rank, size);
  switch (mine.kind) {
    case CollectiveKind::AllReduce:
    case CollectiveKind::ReduceScatter:
      return sum_slice(rounds, slice, mine.kind == CollectiveKind::AllReduce ? kToAll : rank);
    case CollectiveKind::AllGather:
    case CollectiveKind::Broadcast: {
      const int from = mine.kind == CollectiveKind::AllGather ? rank : mine.root;
      in_ranges(slice, element_bytes, [&](std::size_t begin, std::size_t end) {
        copy_elements(rounds, static_cast<std::size_t>(from), begin * element_bytes,
                      end * element_bytes);
      });
      return;
    }
  }
}

}  // namespace lockstep
