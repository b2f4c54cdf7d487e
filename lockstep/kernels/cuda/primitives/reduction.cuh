// The kernels of reductions, one per kind of reduced axes. SumOf and MaxOf say how elements are
// combined: a few of them in Element, pair by pair, and their results in Total. Sums of floats are
// thus computed in f32 over 16 consecutive elements or 4 rows, and in double beyond that. The order
// depends only on the shape (and on whether memory is aligned to 16 bytes).
//
// Every kernel reads X and writes Y. If the reduced elements are split into pieces, a first launch
// writes a total per piece and a second one combines them.
#pragma once

#include <limits>
#include <type_traits>

#include "lockstep/kernels/cuda/primitives/elements.cuh"
#include "lockstep/kernels/cuda/primitives/walk.cuh"
#include "lockstep/kernels/kernel.h"

namespace lockstep {

// A part of add_cuda_reduce.
void add_cuda_argmax(KernelLibrary& library);  // argmax.cu

inline constexpr int kReduceThreads = 256;
inline constexpr int kReduceLoads = 4;  // vector loads in flight per thread

template <class X>
struct SumOf {
  // Integers are added unsigned, so that overflow wraps around.
  using Element = std::conditional_t<std::is_integral_v<X>, std::uint64_t, Wide<X>>;
  using Total = std::conditional_t<std::is_integral_v<X>, std::uint64_t, double>;
  template <class V>
  __device__ static V first() {
    return V{0};
  }
  template <class V>
  __device__ static V join(V a, V b) {
    return a + b;
  }
};

// NaN counts as the largest; the maximum of no elements is the lowest number of the type.
template <class X>
struct MaxOf {
  using Element = Wide<X>;
  using Total = Wide<X>;
  template <class V>
  __device__ static V first() {
    if constexpr (std::is_floating_point_v<V>) {
      return -std::numeric_limits<V>::infinity();
    } else {
      return std::numeric_limits<V>::lowest();
    }
  }
  template <class V>
  __device__ static V join(V a, V b) {
    return (b > a) | (b != b) ? b : a;
  }
};

// Converts a total to its stored type; sums of floats are scaled: 1 / n for a mean, 1 for a piece.
template <class Y, class Total>
__device__ __forceinline__ Y finished(Total total, double scale) {
  if constexpr (std::is_same_v<Total, double>) {
    const double result = total * scale;
    if constexpr (std::is_same_v<Y, double>) return result;
    return narrow<Y>(static_cast<float>(result));
  } else {
    return narrow<Y>(total);
  }
}

// Combines the totals of teams of `lanes` neighbouring threads, a power of two up to 32; the first
// thread of a team gets the result. Must be called by whole warps.
template <class R, class Total>
__device__ __forceinline__ Total join_lanes(Total total, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    const auto other = static_cast<Total>(__shfl_down_sync(0xffffffffu, total, distance, lanes));
    total = R::join(total, other);
  }
  return total;
}

// Combines the totals of a block; thread 0 gets the result.
template <class R, class Total>
__device__ Total join_block(Total total) {
  __shared__ Total of_warps[kReduceThreads / 32];
  total = join_lanes<R>(total, 32);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = total;
  __syncthreads();
  if (threadIdx.x < 32) {
    total = threadIdx.x < kReduceThreads / 32 ? of_warps[threadIdx.x] : R::template first<Total>();
    total = join_lanes<R>(total, kReduceThreads / 32);
  }
  return total;
}

// One thread's total over `count` consecutive elements, a multiple of V, whose vectors are assigned
// to `lanes` threads in turn.
template <class R, int V, class X>
__device__ __forceinline__ typename R::Total reduce_run(const X* x, std::int64_t count, int lane,
                                                        int lanes) {
  using Element = typename R::Element;
  using Total = typename R::Total;
  Total total = R::template first<Total>();
  const std::int64_t step = static_cast<std::int64_t>(lanes) * V;
  for (std::int64_t at = static_cast<std::int64_t>(lane) * V; at < count;
       at += kReduceLoads * step) {
    Vector<X, V> loaded[kReduceLoads];
#pragma unroll
    for (int load = 0; load < kReduceLoads; ++load) {
      if (at + load * step < count) loaded[load] = load_vector<X, V>(x + at + load * step);
    }
    Element joined[kReduceLoads];
#pragma unroll
    for (int load = 0; load < kReduceLoads; ++load) {
      joined[load] = R::template first<Element>();
      if (at + load * step < count) {
#pragma unroll
        for (int i = 0; i < V; ++i) {
          joined[load] = R::join(joined[load], static_cast<Element>(widen(loaded[load].items[i])));
        }
      }
    }
    const Element all = R::join(R::join(joined[0], joined[1]), R::join(joined[2], joined[3]));
    total = R::join(total, static_cast<Total>(all));
  }
  return total;
}

// (outer, reduced) → (outer), one row per team of `lanes` threads.
template <class R, int V, class X, class Y>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_short_rows(const X* __restrict__ x, Y* __restrict__ y, std::int64_t outer,
                      std::int64_t reduced, int lanes, double scale) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kReduceThreads + threadIdx.x;
  const std::int64_t row = thread >> (31 - __clz(lanes));
  const int lane = threadIdx.x & (lanes - 1);
  typename R::Total total = R::template first<typename R::Total>();
  if (row < outer) total = reduce_run<R, V>(x + row * reduced, reduced, lane, lanes);
  total = join_lanes<R>(total, lanes);
  if (row < outer && lane == 0) y[row] = finished<Y>(total, scale);
}

// (outer, reduced) → (outer, pieces), one piece of `length` elements, a multiple of V, per block.
template <class R, int V, class X, class Y>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_long_rows(const X* __restrict__ x, Y* __restrict__ y, std::int64_t reduced, int pieces,
                     std::int64_t length, double scale) {
  const std::int64_t row = blockIdx.x / static_cast<unsigned>(pieces);
  const std::int64_t begin = length * (blockIdx.x % static_cast<unsigned>(pieces));
  const std::int64_t count = min(length, reduced - begin);
  auto total = reduce_run<R, V>(x + row * reduced + begin, count, threadIdx.x, kReduceThreads);
  total = join_block<R>(total);
  if (threadIdx.x == 0) y[blockIdx.x] = finished<Y>(total, scale);
}

// (outer, reduced, inner) → (outer, inner), V columns per thread: for many short columns.
template <class R, int V, class X, class Y>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_short_columns(const X* __restrict__ x, Y* __restrict__ y, std::int64_t outer,
                         std::int64_t reduced, std::int64_t inner, double scale) {
  using Element = typename R::Element;
  using Total = typename R::Total;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kReduceThreads + threadIdx.x;
  const std::int64_t vectors = inner / V;
  if (thread >= outer * vectors) return;
  const X* from = x + thread / vectors * reduced * inner + thread % vectors * V;
  Total totals[V];
#pragma unroll
  for (int i = 0; i < V; ++i) totals[i] = R::template first<Total>();
  for (std::int64_t row = 0; row < reduced; row += kReduceLoads) {
    Vector<X, V> loaded[kReduceLoads];
#pragma unroll
    for (int load = 0; load < kReduceLoads; ++load) {
      if (row + load < reduced) loaded[load] = load_vector<X, V>(from + (row + load) * inner);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      Element joined = R::template first<Element>();
#pragma unroll
      for (int load = 0; load < kReduceLoads; ++load) {
        if (row + load < reduced) {
          joined = R::join(joined, static_cast<Element>(widen(loaded[load].items[i])));
        }
      }
      totals[i] = R::join(totals[i], static_cast<Total>(joined));
    }
  }
#pragma unroll
  for (int i = 0; i < V; ++i) y[thread * V + i] = finished<Y>(totals[i], scale);
}

// How reduce_columns divides rows and columns among blocks.
struct ColumnTiles {
  int across = 1;          // threads along the columns, a power of two up to 32
  std::int64_t tiles = 1;  // of the columns
  int pieces = 1;          // of the rows
  std::int64_t rows = 1;   // per piece
  std::int64_t blocks(std::int64_t outer) const { return outer * pieces * tiles; }
};

// (outer, reduced, inner) → (outer, pieces, inner). A thread has V columns and every depth-th row
// of a piece; loads are coalesced. The threads of a column are combined by a tree in shared memory.
template <class R, int V, class X, class Y>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_columns(const X* __restrict__ x, Y* __restrict__ y, std::int64_t reduced,
                   std::int64_t inner, ColumnTiles tiles, double scale) {
  using Element = typename R::Element;
  using Total = typename R::Total;
  __shared__ Total shared[V][kReduceThreads];
  const std::int64_t block = blockIdx.x;
  const std::int64_t tile = block % tiles.tiles;
  const std::int64_t piece = block / tiles.tiles % tiles.pieces;
  const std::int64_t outer = block / tiles.tiles / tiles.pieces;
  const int lane = threadIdx.x % tiles.across;
  const int depth = kReduceThreads / tiles.across;
  const int level = threadIdx.x / tiles.across;
  const std::int64_t column = (tile * tiles.across + lane) * V;
  const bool inside = column < inner;
  const std::int64_t begin = piece * tiles.rows;
  const std::int64_t end = min(begin + tiles.rows, reduced);

  Total totals[V];
#pragma unroll
  for (int i = 0; i < V; ++i) totals[i] = R::template first<Total>();
  const X* from = x + outer * reduced * inner + column;
  for (std::int64_t row = begin + level; inside && row < end; row += kReduceLoads * depth) {
    Vector<X, V> loaded[kReduceLoads];
#pragma unroll
    for (int load = 0; load < kReduceLoads; ++load) {
      const std::int64_t at = row + load * depth;
      if (at < end) loaded[load] = load_vector<X, V>(from + at * inner);
    }
#pragma unroll
    for (int i = 0; i < V; ++i) {
      Element joined[kReduceLoads];
#pragma unroll
      for (int load = 0; load < kReduceLoads; ++load) {
        joined[load] = row + load * depth < end ? static_cast<Element>(widen(loaded[load].items[i]))
                                                : R::template first<Element>();
      }
      const Element all = R::join(R::join(joined[0], joined[1]), R::join(joined[2], joined[3]));
      totals[i] = R::join(totals[i], static_cast<Total>(all));
    }
  }

#pragma unroll
  for (int i = 0; i < V; ++i) shared[i][threadIdx.x] = totals[i];
  __syncthreads();
  for (int half = depth / 2; half > 0; half /= 2) {
    if (level < half) {
#pragma unroll
      for (int i = 0; i < V; ++i) {
        totals[i] = R::join(totals[i], shared[i][threadIdx.x + half * tiles.across]);
        shared[i][threadIdx.x] = totals[i];
      }
    }
    __syncthreads();
  }
  if (level == 0 && inside) {
    Y* to = y + (outer * tiles.pieces + piece) * inner + column;
#pragma unroll
    for (int i = 0; i < V; ++i) to[i] = finished<Y>(totals[i], scale);
  }
}

// The axes of any other reduction: the offset of a result's first element (kept), and of each
// element relative to it (reduced).
struct ScatteredAxes {
  Digits<1> kept;
  Digits<1> reduced;
  std::uint32_t results = 0;
  std::uint32_t count = 0;  // elements per result
  std::uint32_t pieces = 1;
  std::uint32_t length = 0;  // of a piece
};

// → (results, pieces), one piece per team of `lanes` threads. If the innermost axis is kept, teams
// are single threads, so that loads are coalesced.
template <class R, class X, class Y>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_scattered(const X* __restrict__ x, Y* __restrict__ y, ScatteredAxes axes, int lanes,
                     double scale) {
  using Total = typename R::Total;
  const std::uint32_t team = (blockIdx.x * kReduceThreads + threadIdx.x) >> (31 - __clz(lanes));
  const std::uint32_t lane = threadIdx.x & (lanes - 1);
  const std::uint32_t piece = team / axes.results;
  const std::uint32_t result = team - piece * axes.results;
  const bool inside = piece < axes.pieces;
  Total total = R::template first<Total>();
  if (inside) {
    std::int64_t base[1] = {0};
    axes.kept.add_to(base, result);
    const std::uint32_t begin = piece * axes.length;
    const std::uint32_t end = min(begin + axes.length, axes.count);
#pragma unroll 4
    for (std::uint32_t i = begin + lane; i < end; i += lanes) {
      std::int64_t offset[1] = {base[0]};
      axes.reduced.add_to(offset, i);
      total = R::join(total, static_cast<Total>(widen(x[offset[0]])));
    }
  }
  total = join_lanes<R>(total, lanes);
  if (inside && lane == 0) {
    y[std::int64_t{result} * axes.pieces + piece] = finished<Y>(total, scale);
  }
}

}  // namespace lockstep
