// A few sums over all rows of each channel of a value (rows, channels), in one sweep over memory:
// the statistics of batch norm and the gradients of scales and offsets come down to it.
//
// A block has a tile of channels and every so-many-eth group of rows: its threads stand side by
// side along the channels, a pack each, and as many rows deep as they are. A thread adds up its
// channels in f32 over its rows, the block adds up its threads, and the last block of a tile to be
// done adds up those of all blocks, in double and in the order of the blocks: which block that is
// changes nothing. Tiles are narrow, a cache line of a row in 16 bits: then there are many, the
// blocks of each are few, and so its last one is soon done with them. All blocks are on the device
// at once and move through memory together, so that what was read last is in the cache for a sweep
// that begins at the end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/packs.cuh"

namespace lockstep {

inline constexpr int kColumnThreads = 256;
inline constexpr int kTileChannels = 64;  // at most
inline constexpr int kBlocksInPlace = 3;  // of a multiprocessor: what their registers allow

// A value as rows of channels.
struct ChannelRows {
  std::int64_t rows = 0;
  int channels = 0;

  ChannelRows() = default;
  explicit ChannelRows(const Shape& shape)
      : rows(shape[-1] == 0 ? 0 : shape.elements() / shape[-1]),
        channels(static_cast<int>(shape[-1])) {}
};

// How rows and channels are dealt out to blocks, for packs of some width.
struct ColumnGrid {
  int packs = 0;       // of a row
  int tile_packs = 0;  // of them that a block has
  int tiles = 0;
  int depth = 0;   // rows that a block has at once
  int blocks = 0;  // of a tile

  ColumnGrid() = default;
  ColumnGrid(const ChannelRows& r, int width, int multiprocessors) {
    const int most = kTileChannels / width;
    packs = std::max(r.channels / width, 1);
    tiles = (packs + most - 1) / most;
    tile_packs = (packs + tiles - 1) / tiles;
    depth = kColumnThreads / tile_packs;
    constexpr std::int64_t kLeastRows = 4;  // of a thread, below which blocks are not worth it
    const std::int64_t useful = (r.rows + depth * kLeastRows - 1) / (depth * kLeastRows);
    const std::int64_t fitting = kBlocksInPlace * multiprocessors / tiles;
    blocks = static_cast<int>(std::max<std::int64_t>(1, std::min(useful, fitting)));
  }

  unsigned all_blocks() const { return static_cast<unsigned>(tiles * blocks); }
  // Floats of partial sums.
  std::size_t partials(const ChannelRows& r, int sums) const {
    return static_cast<std::size_t>(sums) * static_cast<std::size_t>(blocks) *
           static_cast<std::size_t>(r.channels);
  }
};

// Both ways to go through a value: in full packs where they fit, and element by element.
struct ColumnGrids {
  ColumnGrid wide;
  ColumnGrid narrow;

  template <class T>
  static ColumnGrids of(const ChannelRows& r, int multiprocessors, T) {
    return {ColumnGrid(r, kPack<T>, multiprocessors), ColumnGrid(r, 1, multiprocessors)};
  }
  std::size_t workspace_bytes(const ChannelRows& r, int sums = 2) const {
    return sizeof(float) * std::max(wide.partials(r, sums), narrow.partials(r, sums));
  }
  // One for each tile; blocks leave them at zero, where they begin.
  std::shared_ptr<Buffer> make_counters(Device& device) const {
    const int tiles = std::max(wide.tiles, narrow.tiles);
    return device.allocate(sizeof(unsigned) * static_cast<std::size_t>(tiles));
  }
};

// Where a thread stands.
struct ColumnPlace {
  int tile;
  int block;
  int first;     // channel of the tile
  int channels;  // of the tile
  int side;      // the thread's first channel, in the tile
  int level;     // its row among those that the block has at once
  bool active;
  std::int64_t row;   // its first
  std::int64_t step;  // from there to its next
};

template <int N>
__device__ __forceinline__ ColumnPlace column_place(const ChannelRows& r, const ColumnGrid& g) {
  ColumnPlace p;
  p.tile = static_cast<int>(blockIdx.x) % g.tiles;
  p.block = static_cast<int>(blockIdx.x) / g.tiles;
  p.first = p.tile * g.tile_packs * N;
  p.channels = min(g.tile_packs * N, r.channels - p.first);
  const int thread = static_cast<int>(threadIdx.x);
  p.side = thread % g.tile_packs * N;
  p.level = thread / g.tile_packs;
  p.active = p.level < g.depth && p.side < p.channels;
  p.row = static_cast<std::int64_t>(p.block) * g.depth + p.level;
  p.step = static_cast<std::int64_t>(g.blocks) * g.depth;
  return p;
}

// For a sweep that adds nothing up: a block has its tile of kSweepRows times as many rows as its
// threads are deep, one behind the other, and there are as many blocks as that takes. Blocks are
// started in their order, so those that run together read and write one stretch of memory; that is
// faster than blocks that stay and step through it.
inline constexpr int kSweepRows = 4;
inline constexpr int kSweepsInPlace = 2;  // of a multiprocessor at least: none spills its registers

inline unsigned sweep_blocks(const ChannelRows& r, const ColumnGrid& g) {
  const std::int64_t rows = std::int64_t{g.depth} * kSweepRows;
  return static_cast<unsigned>((r.rows + rows - 1) / rows * g.tiles);
}

template <int N>
__device__ __forceinline__ ColumnPlace sweep_place(const ChannelRows& r, const ColumnGrid& g) {
  ColumnPlace p = column_place<N>(r, g);
  p.row = static_cast<std::int64_t>(p.block) * g.depth * kSweepRows + p.level;
  p.step = g.depth;
  return p;
}

// Of a block: the sums of its threads, then those of its slices of blocks.
template <int kSums = 2>
union alignas(16) ColumnMemory {
  float sums[kSums][kColumnThreads * 8];
  double slices[kColumnThreads * 4];
};

// N floats to and from a block's memory, four at a time where there are as many.
template <int N>
__device__ __forceinline__ void store_shared(float* to, const float (&values)[N]) {
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      *reinterpret_cast<float4*>(to + i) =
          make_float4(values[i], values[i + 1], values[i + 2], values[i + 3]);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) to[i] = values[i];
  }
}

template <int N>
__device__ __forceinline__ void load_shared(const float* from, float (&values)[N]) {
  if constexpr (N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 four = *reinterpret_cast<const float4*>(from + i);
      values[i] = four.x;
      values[i + 1] = four.y;
      values[i + 2] = four.z;
      values[i + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = from[i];
  }
}

// The sums of a block's threads into its row of `partial`, which is (blocks, kSums, channels).
template <int N, int kSums>
__device__ void add_up_block(const ChannelRows& r, const ColumnGrid& g, const ColumnPlace& p,
                             const float (&sums)[kSums][N], float* partial,
                             ColumnMemory<kSums>& memory) {
  const int pitch = g.tile_packs * N;
  if (p.active) {
#pragma unroll
    for (int which = 0; which < kSums; ++which) {
      store_shared<N>(&memory.sums[which][p.level * pitch + p.side], sums[which]);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kSums * p.channels; i += kColumnThreads) {
    const int which = i / p.channels;
    const int channel = i - which * p.channels;
    float sum = 0;
#pragma unroll 8
    for (int level = 0; level < g.depth; ++level)
      sum += memory.sums[which][level * pitch + channel];
    partial[(static_cast<std::int64_t>(p.block) * kSums + which) * r.channels + p.first + channel] =
        sum;
  }
}

// Whether this block is the last of its tile; what the others wrote can then be read.
__device__ inline bool last_of_tile(const ColumnGrid& g, const ColumnPlace& p, unsigned* counters) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned most = static_cast<unsigned>(g.blocks) - 1;
    last = atomicInc(counters + p.tile, most) == most;  // the last leaves it at zero
  }
  __syncthreads();
  __threadfence();
  return last;
}

// Brings the sums of all threads together and calls finish(channel, sums), in doubles, once for
// each channel. All threads of all blocks call it.
template <int N, int kSums, class Finish>
__device__ void finish_columns(const ChannelRows& r, const ColumnGrid& g, const ColumnPlace& p,
                               const float (&sums)[kSums][N], float* partial, unsigned* counters,
                               ColumnMemory<kSums>& memory, const Finish& finish) {
  add_up_block<N>(r, g, p, sums, partial, memory);
  if (!last_of_tile(g, p, counters)) return;
  constexpr int kWidth = N % 4 == 0 ? 4 : 1;
  const int items = kSums * p.channels / kWidth;  // no more than there are threads
  static_assert(kSums * kTileChannels <= kColumnThreads);
  const int slices = kColumnThreads / items;
  const int item = static_cast<int>(threadIdx.x) % items;
  const int slice = static_cast<int>(threadIdx.x) / items;
  if (slice < slices) {
    const int which = item * kWidth / p.channels;
    const int channel = item * kWidth - which * p.channels;
    const std::int64_t row = kSums * static_cast<std::int64_t>(r.channels);
    const float* from = partial + which * r.channels + p.first + channel;
    double total[kWidth] = {};
#pragma unroll 8
    for (int block = slice; block < g.blocks; block += slices) {
      float values[kWidth];
      load_floats<float, kWidth>(from + block * row, values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) total[i] += static_cast<double>(values[i]);
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      memory.slices[(slice * items + item) * kWidth + i] = total[i];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < p.channels; i += kColumnThreads) {
    double totals[kSums] = {};
    for (int k = 0; k < slices; ++k) {
#pragma unroll
      for (int which = 0; which < kSums; ++which) {
        totals[which] += memory.slices[k * items * kWidth + which * p.channels + i];
      }
    }
    finish(p.first + i, totals);
  }
}

}  // namespace lockstep
