// The steps of a reduction, by what is reduced. An element type's reduction says how elements are
// joined: a few of them in Element, pair by pair, and their results in Total. Sums of floats are
// thus taken in f32 over 16 neighbours or 4 rows, and in double beyond. The order depends on the
// shape alone (and on whether memory lies on 16-byte boundaries).
//
// Every kernel reads X and writes Y: a first step that cuts the reduced elements into pieces writes
// totals, a second reads them.
#pragma once

#include <limits>
#include <type_traits>

#include "lockstep/kernels/cuda/elements.cuh"
#include "lockstep/kernels/cuda/walk.cuh"
#include "lockstep/kernels/kernel.h"

namespace lockstep {

// A part of add_cuda_reduce.
void add_cuda_argmax(KernelLibrary& library);  // argmax.cu

inline constexpr int kReduceThreads = 256;
inline constexpr int kReduceLoads = 4;  // packs in flight of a thread

template <class X>
struct SumOf {
  // Integers are added without sign, so that overflow wraps around.
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

// A NaN is the largest; nothing at all gives the lowest number there is.
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

// A total as it is stored: sums of floats scaled by a mean's share, which is 1 for a piece's.
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

// Joins the totals of teams of `lanes` neighbouring threads, a power of two up to 32; the first of
// a team has the result. Called by whole warps.
template <class R, class Total>
__device__ __forceinline__ Total join_lanes(Total total, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    const auto other = static_cast<Total>(__shfl_down_sync(0xffffffffu, total, distance, lanes));
    total = R::join(total, other);
  }
  return total;
}

// Joins the totals of a block; thread 0 has the result.
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

// A thread's share of `count` neighbours, a multiple of V, of which `lanes` threads take packs in
// turn.
template <class R, int V, class X>
__device__ __forceinline__ typename R::Total reduce_run(const X* x, std::int64_t count, int lane,
                                                        int lanes) {
  using Element = typename R::Element;
  using Total = typename R::Total;
  Total total = R::template first<Total>();
  const std::int64_t step = static_cast<std::int64_t>(lanes) * V;
  for (std::int64_t at = static_cast<std::int64_t>(lane) * V; at < count;
       at += kReduceLoads * step) {
    Pack<X, V> loaded[kReduceLoads];
#pragma unroll
    for (int load = 0; load < kReduceLoads; ++load) {
      if (at + load * step < count) loaded[load] = load_pack<X, V>(x + at + load * step);
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

// (outer, reduced) → (outer), a row for a team of `lanes` threads.
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

// (outer, reduced) → (outer, pieces), a piece of `length` elements, a multiple of V, for a block.
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

// (outer, reduced, inner) → (outer, inner), V columns for a thread: for many short columns.
template <class R, int V, class X, class Y>
__global__ void __launch_bounds__(kReduceThreads)
    reduce_short_columns(const X* __restrict__ x, Y* __restrict__ y, std::int64_t outer,
                         std::int64_t reduced, std::int64_t inner, double scale) {
  using Element = typename R::Element;
  using Total = typename R::Total;
  const std::int64_t thread = std::int64_t{blockIdx.x} * kReduceThreads + threadIdx.x;
  const std::int64_t packs = inner / V;
  if (thread >= outer * packs) return;
  const X* from = x + thread / packs * reduced * inner + thread % packs * V;
  Total totals[V];
#pragma unroll
  for (int i = 0; i < V; ++i) totals[i] = R::template first<Total>();
  for (std::int64_t row = 0; row < reduced; row += kReduceLoads) {
    Pack<X, V> loaded[kReduceLoads];
#pragma unroll
    for (int load = 0; load < kReduceLoads; ++load) {
      if (row + load < reduced) loaded[load] = load_pack<X, V>(from + (row + load) * inner);
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

// How a block of reduce_columns stands over rows and columns.
struct ColumnTiles {
  int across = 1;          // threads along the columns, a power of two up to 32
  std::int64_t tiles = 1;  // of the columns
  int pieces = 1;          // of the rows
  std::int64_t rows = 1;   // of a piece
  std::int64_t blocks(std::int64_t outer) const { return outer * pieces * tiles; }
};

// (outer, reduced, inner) → (outer, pieces, inner). A thread has V columns and every so-many-eth
// row of a piece; neighbours read neighbouring packs. The threads over a column are joined through
// shared memory, the farther half into the nearer.
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
    Pack<X, V> loaded[kReduceLoads];
#pragma unroll
    for (int load = 0; load < kReduceLoads; ++load) {
      const std::int64_t at = row + load * depth;
      if (at < end) loaded[load] = load_pack<X, V>(from + at * inner);
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

// The axes of any other reduction: where a result's elements begin, and where each lies from there.
struct ScatteredAxes {
  Digits<1> kept;
  Digits<1> reduced;
  std::uint32_t results = 0;
  std::uint32_t count = 0;  // elements of a result
  std::uint32_t pieces = 1;
  std::uint32_t length = 0;  // of a piece
};

// → (results, pieces), a piece for a team of `lanes` threads. Where the innermost axis is kept,
// teams are single threads: neighbours then read neighbouring elements.
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
