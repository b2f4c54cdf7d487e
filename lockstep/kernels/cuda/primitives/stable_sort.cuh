// A stable radix sort of small integers together with their positions, for kernels that group equal
// ones: by digits of eight bits, the lowest first. Each pass counts the digits per tile, computes
// the prefix sum of the counts over digits and tiles, and moves each number to its rank. Ranks are
// computed from ballots and counts only, so the result is the same every time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>

#include "lockstep/kernels/cuda/cuda.h"

namespace lockstep {

inline constexpr int kSortThreads = 256;
inline constexpr int kSortRounds = 4;  // numbers per thread
inline constexpr int kSortTile = kSortThreads * kSortRounds;
inline constexpr int kDigits = 256;
inline constexpr int kDigitBits = 8;
inline constexpr int kScanThreads = 1024;

static_assert(kDigits == kSortThreads, "there is one thread per digit");

// counts[digit][tile].
static __global__ void __launch_bounds__(kSortThreads)
    count_digits(const std::uint32_t* __restrict__ keys, std::uint32_t* __restrict__ counts,
                 std::uint32_t count, int shift) {
  __shared__ std::uint32_t of_digit[kDigits];
  of_digit[threadIdx.x] = 0;
  __syncthreads();
  for (int round = 0; round < kSortRounds; ++round) {
    const std::uint32_t at = blockIdx.x * kSortTile + round * kSortThreads + threadIdx.x;
    if (at < count) atomicAdd(&of_digit[keys[at] >> shift & (kDigits - 1)], 1u);
  }
  __syncthreads();
  counts[threadIdx.x * gridDim.x + blockIdx.x] = of_digit[threadIdx.x];
}

// Exclusive prefix sum, in one block; a thread has a contiguous range.
static __global__ void __launch_bounds__(kScanThreads)
    sum_before(std::uint32_t* counts, std::uint32_t count) {
  __shared__ std::uint32_t of_warps[kScanThreads / 32];
  const std::uint32_t length = (count + kScanThreads - 1) / kScanThreads;
  const std::uint32_t begin = min(threadIdx.x * length, count);
  const std::uint32_t end = min(begin + length, count);
  std::uint32_t own = 0;
  for (std::uint32_t i = begin; i < end; ++i) own += counts[i];

  const int lane = threadIdx.x % 32;
  std::uint32_t upto = own;
  for (int distance = 1; distance < 32; distance *= 2) {
    const std::uint32_t other = __shfl_up_sync(0xffffffffu, upto, distance);
    if (lane >= distance) upto += other;
  }
  if (lane == 31) of_warps[threadIdx.x / 32] = upto;
  __syncthreads();
  std::uint32_t before = upto - own;
  for (unsigned warp = 0; warp < threadIdx.x / 32; ++warp) before += of_warps[warp];
  for (std::uint32_t i = begin; i < end; ++i) {
    const std::uint32_t here = counts[i];
    counts[i] = before;
    before += here;
  }
}

static __global__ void __launch_bounds__(kSortThreads)
    move_digits(const std::uint32_t* __restrict__ keys, const std::uint32_t* __restrict__ places,
                std::uint32_t* __restrict__ to_keys, std::uint32_t* __restrict__ to_places,
                const std::uint32_t* __restrict__ starts, std::uint32_t count, int shift) {
  constexpr int kWarps = kSortThreads / 32;
  __shared__ std::uint32_t next[kDigits];
  __shared__ std::uint32_t of_warps[kWarps][kDigits];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  next[threadIdx.x] = starts[threadIdx.x * gridDim.x + blockIdx.x];
  for (int w = 0; w < kWarps; ++w) of_warps[w][threadIdx.x] = 0;
  __syncthreads();
  for (int round = 0; round < kSortRounds; ++round) {
    const std::uint32_t at = blockIdx.x * kSortTile + round * kSortThreads + threadIdx.x;
    const bool inside = at < count;
    const std::uint32_t key = inside ? keys[at] : 0;
    const std::uint32_t digit = inside ? key >> shift & (kDigits - 1) : kDigits;
    const unsigned alike = __match_any_sync(0xffffffffu, digit);
    const int before = __popc(alike & ((1u << lane) - 1));
    if (inside && before == 0) of_warps[warp][digit] = __popc(alike);
    __syncthreads();
    if (inside) {
      std::uint32_t to = next[digit] + before;
      for (int w = 0; w < warp; ++w) to += of_warps[w][digit];
      to_keys[to] = key;
      to_places[to] = places[at];
    }
    __syncthreads();
    std::uint32_t moved = 0;
    for (int w = 0; w < kWarps; ++w) {
      moved += of_warps[w][threadIdx.x];
      of_warps[w][threadIdx.x] = 0;
    }
    next[threadIdx.x] += moved;
    __syncthreads();
  }
}

// Numbers and the positions they came from.
struct SortedKeys {
  std::uint32_t* keys = nullptr;
  std::uint32_t* places = nullptr;
};

struct StableSort {
  std::uint32_t count = 0;
  int passes = 1;

  // Sorts so many numbers, each at most `most`.
  StableSort(std::int64_t numbers, std::int64_t most) : count(static_cast<std::uint32_t>(numbers)) {
    const int bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(most)));
    passes = std::max(1, (bits + kDigitBits - 1) / kDigitBits);
  }

  unsigned tiles() const { return std::max(1u, (count + kSortTile - 1) / kSortTile); }
  // 32-bit words of scratch memory: keys and positions twice, and the counts.
  std::size_t words() const { return 4 * std::size_t{count} + std::size_t{kDigits} * tiles(); }
  // Where the caller writes the numbers to sort, with their positions 0, 1, …
  SortedKeys unsorted(std::uint32_t* scratch) const { return {scratch, scratch + count}; }

  SortedKeys launch(std::uint32_t* scratch, cudaStream_t stream) const {
    SortedKeys from = unsorted(scratch);
    SortedKeys to = unsorted(scratch + 2 * std::size_t{count});
    std::uint32_t* counts = scratch + 4 * std::size_t{count};
    for (int pass = 0; pass < passes; ++pass) {
      const int shift = pass * kDigitBits;
      count_digits<<<tiles(), kSortThreads, 0, stream>>>(from.keys, counts, count, shift);
      check_launch("count_digits");
      sum_before<<<1, kScanThreads, 0, stream>>>(counts, kDigits * tiles());
      check_launch("sum_before");
      move_digits<<<tiles(), kSortThreads, 0, stream>>>(from.keys, from.places, to.keys, to.places,
                                                        counts, count, shift);
      check_launch("move_digits");
      std::swap(from, to);
    }
    return from;
  }
};

}  // namespace lockstep
