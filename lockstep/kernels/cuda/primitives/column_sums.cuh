// A few sums per channel over all rows of a value (rows, channels), in one pass over memory: used
// for the statistics of batch norm and the gradients of scales and offsets.
//
// A block has a tile of channels and every g.blocks-th group of rows. Its threads are arranged
// along the channels, a vector each, and over as many rows as they fill. A thread sums its channels
// in f32 over its rows, then the block sums its threads. The last block of a tile to finish adds up
// all blocks of the tile, in double and in the order of the blocks, so it does not matter which
// block that is. Tiles are narrow, a cache line of a row in 16 bits: there are many tiles with few
// blocks each, so the final sum is short. All blocks are resident at once and move through memory
// together, so that what was read last is still cached for a second pass that goes backwards.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/vectors.cuh"

namespace lockstep {

inline constexpr int kColumnThreads = 256;
inline constexpr int kTileChannels = 64;  // at most
inline constexpr int kBlocksInPlace = 3;  // resident per multiprocessor, as registers allow

// A value as rows of channels.
struct ChannelRows {
  std::int64_t rows = 0;
  int channels = 0;

  ChannelRows() = default;
  explicit ChannelRows(const Shape& shape)
      : rows(shape[-1] == 0 ? 0 : shape.elements() / shape[-1]),
        channels(static_cast<int>(shape[-1])) {}
};

// How rows and channels are divided among blocks, for vectors of some width.
struct ColumnGrid {
  int vectors = 0;       // vectors per row
  int tile_vectors = 0;  // vectors per row of a tile
  int tiles = 0;
  int depth = 0;   // rows that a block processes at once
  int blocks = 0;  // per tile

  ColumnGrid() = default;
  ColumnGrid(const ChannelRows& r, int width, int multiprocessors) {
    const int most = kTileChannels / width;
    vectors = std::max(r.channels / width, 1);
    tiles = (vectors + most - 1) / most;
    tile_vectors = (vectors + tiles - 1) / tiles;
    depth = kColumnThreads / tile_vectors;
    constexpr std::int64_t kLeastRows = 4;  // per thread; with fewer, a block does not pay off
    const std::int64_t useful = (r.rows + depth * kLeastRows - 1) / (depth * kLeastRows);
    const std::int64_t fitting = kBlocksInPlace * multiprocessors / tiles;
    blocks = static_cast<int>(std::max<std::int64_t>(1, std::min(useful, fitting)));
  }

  unsigned all_blocks() const { return static_cast<unsigned>(tiles * blocks); }
  // Number of floats for the partial sums.
  std::size_t partials(const ChannelRows& r, int sums) const {
    return static_cast<std::size_t>(sums) * static_cast<std::size_t>(blocks) *
           static_cast<std::size_t>(r.channels);
  }
};

// Both ways to process a value: in full vectors if they fit, and element by element.
struct ColumnGrids {
  ColumnGrid wide;
  ColumnGrid narrow;

  template <class T>
  static ColumnGrids of(const ChannelRows& r, int multiprocessors, T) {
    return {ColumnGrid(r, kVectorSize<T>, multiprocessors), ColumnGrid(r, 1, multiprocessors)};
  }
  std::size_t workspace_bytes(const ChannelRows& r, int sums = 2) const {
    return sizeof(float) * std::max(wide.partials(r, sums), narrow.partials(r, sums));
  }
  // One counter per tile; they start at zero, and the last block resets them.
  std::shared_ptr<Buffer> make_counters(Device& device) const {
    const int tiles = std::max(wide.tiles, narrow.tiles);
    return device.allocate(sizeof(unsigned) * static_cast<std::size_t>(tiles));
  }
};

// Which part of the value a thread processes.
struct ColumnPlace {
  int tile;
  int block;
  int first;     // channel of the tile
  int channels;  // in the tile
  int side;      // the thread's first channel, relative to the tile
  int level;     // its row among those that the block processes at once
  bool active;
  std::int64_t row;   // its first row
  std::int64_t step;  // distance to its next row
};

template <int N>
__device__ __forceinline__ ColumnPlace column_place(const ChannelRows& r, const ColumnGrid& g) {
  ColumnPlace p;
  p.tile = static_cast<int>(blockIdx.x) % g.tiles;
  p.block = static_cast<int>(blockIdx.x) / g.tiles;
  p.first = p.tile * g.tile_vectors * N;
  p.channels = min(g.tile_vectors * N, r.channels - p.first);
  const int thread = static_cast<int>(threadIdx.x);
  p.side = thread % g.tile_vectors * N;
  p.level = thread / g.tile_vectors;
  p.active = p.level < g.depth && p.side < p.channels;
  p.row = static_cast<std::int64_t>(p.block) * g.depth + p.level;
  p.step = static_cast<std::int64_t>(g.blocks) * g.depth;
  return p;
}

// For a pass without sums: a block processes kPassRows · depth consecutive rows of its tile, and
// there are as many blocks as needed. Blocks start in order, so those that run together access one
// contiguous range of memory; that is faster than persistent blocks that stride through it.
inline constexpr int kPassRows = 4;
inline constexpr int kPassMinBlocks = 2;  // blocks per multiprocessor, at least; no register spills

inline unsigned pass_blocks(const ChannelRows& r, const ColumnGrid& g) {
  const std::int64_t rows = std::int64_t{g.depth} * kPassRows;
  return static_cast<unsigned>((r.rows + rows - 1) / rows * g.tiles);
}

template <int N>
__device__ __forceinline__ ColumnPlace pass_place(const ChannelRows& r, const ColumnGrid& g) {
  ColumnPlace p = column_place<N>(r, g);
  p.row = static_cast<std::int64_t>(p.block) * g.depth * kPassRows + p.level;
  p.step = g.depth;
  return p;
}

// Shared memory of a block: the sums of its threads, later those of slices of blocks.
template <int kSums = 2>
union alignas(16) ColumnMemory {
  float sums[kSums][kColumnThreads * 8];
  double slices[kColumnThreads * 4];
};

// Stores and loads N floats in shared memory, four at a time if N allows.
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

// Writes the sums over a block's threads to its row of `partial` (blocks, kSums, channels).
template <int N, int kSums>
__device__ void add_up_block(const ChannelRows& r, const ColumnGrid& g, const ColumnPlace& p,
                             const float (&sums)[kSums][N], float* partial,
                             ColumnMemory<kSums>& memory) {
  const int pitch = g.tile_vectors * N;
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

// Whether this block is the last of its tile to finish; it can then read what the others wrote.
__device__ inline bool last_of_tile(const ColumnGrid& g, const ColumnPlace& p, unsigned* counters) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    const unsigned most = static_cast<unsigned>(g.blocks) - 1;
    last = atomicInc(counters + p.tile, most) == most;  // wraps to zero for the next launch
  }
  __syncthreads();
  __threadfence();
  return last;
}

// Adds up the sums of all threads and calls finish(channel, sums), in double, once per channel. All
// threads of all blocks must call it.
template <int N, int kSums, class Finish>
__device__ void finish_columns(const ChannelRows& r, const ColumnGrid& g, const ColumnPlace& p,
                               const float (&sums)[kSums][N], float* partial, unsigned* counters,
                               ColumnMemory<kSums>& memory, const Finish& finish) {
  add_up_block<N>(r, g, p, sums, partial, memory);
  if (!last_of_tile(g, p, counters)) return;
  constexpr int kWidth = N % 4 == 0 ? 4 : 1;
  const int items = kSums * p.channels / kWidth;  // at most kColumnThreads
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
