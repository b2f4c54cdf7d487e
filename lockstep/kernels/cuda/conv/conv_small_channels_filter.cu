// The gradient of the filter, as a matrix product (output channels, results) · (results, window):
// the sum over all results of the outer products of their gradients and windows.
//
// A block keeps the sums of 64 output channels and a whole window in the registers of its four
// warps throughout. A window has two or four pieces of two pixels per row; with four, a warp has
// all channels of one piece of every row, with two, two warps share a piece and take turns.
// Gradients come in runs of 64 results through a ring buffer of three runs, fetched two runs ahead;
// during each run a few rows of the next strip are staged. At the end blocks write their sums to
// memory and a second kernel adds them in a fixed order: the same bits every time.
#include <algorithm>

#include "lockstep/kernels/cuda/conv/conv_small_channels.cuh"
#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/vectors.cuh"

namespace lockstep {
namespace {

constexpr int kOutputs = FewChannels::kOutputs;
constexpr int kRun = 64;  // results
constexpr int kRing = 3;  // runs
constexpr int kRowBytes = 2 * kOutputs;
constexpr int kRunBytes = kRun * kRowBytes;
static_assert(kRing * kRunBytes == FewChannels::kRingBytes);

// A run's gradients as (results, 64), zeros past the end. The eight 16-byte vectors of a row are
// permuted by its number, so that those loaded together are in different banks.
__device__ __forceinline__ unsigned vector_place(int result, int vector) {
  return static_cast<unsigned>(result * kRowBytes + (vector ^ (result & 7)) * 16);
}

// Starts to fetch a thread's vectors of the results from `first` on; `from` points to its channels
// of the strip's first result, `to` is the address of its vector of the run's first result.
template <class T>
__device__ __forceinline__ void fetch_run(const FewChannels& f, const SmallDivisor& by_columns,
                                          const FewStrip& strip, const T* from, bool has_outputs,
                                          int first, unsigned to) {
  constexpr int kStep = kFewThreads / 8;  // results
  const int mine = first + static_cast<int>(threadIdx.x) / 8;
#pragma unroll
  for (int k = 0; k < kRun / kStep; ++k) {
    const int i = mine + k * kStep;
    int place = i;
    bool exists = has_outputs && i < strip.results(f);
    if (f.across > 1) {
      const int row = by_columns.quotient(i);
      const int column = by_columns.rest(i, row);
      place = row * f.ow + column;
      exists = exists && strip.column + column < f.ow;
    }
    fetch(to + static_cast<unsigned>(k * kStep * kRowBytes), from + place * f.o, exists ? 16 : 0);
  }
}

// partial is (channel tiles, blocks, turns, 64, rows, pieces, 8).
template <class T, int kRows, int kPieces>
__global__ void __launch_bounds__(kFewThreads, kFewInPlace)
    few_grad_filter(const FewChannels f, const T* image, const T* grad, float* partial) {
  constexpr int kTurns = kFewWarps / kPieces;
  extern __shared__ __align__(16) std::uint8_t memory[];
  std::uint8_t* now = memory + FewChannels::kRingBytes;  // the current strip, staged
  std::uint8_t* next = now + f.staged_rows() * f.pitch();
  std::uint8_t* raw = next + f.staged_rows() * f.pitch();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int piece = warp % kPieces;
  const int turn = warp / kPieces;
  const int first_output = static_cast<int>(blockIdx.y) * kOutputs;
  const SmallDivisor by_columns(f.columns);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(image);
  const unsigned ring = shared_address(memory);
  const int count = f.rows * f.columns;  // results per strip
  const int runs = (count + kRun - 1) / kRun;
  const unsigned strips = static_cast<unsigned>(f.strips());

  // The offsets of a thread's vector in each group of 16 output channels, at the start of a run.
  unsigned vectors[4];
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
    vectors[tile] = vector_place(lane % 8 + lane / 16 * 8, tile * 2 + lane / 8 % 2);
  }

  float sums[4][kRows][4] = {};
  // The run to fetch next.
  unsigned ahead_number = blockIdx.x;
  FewStrip ahead(f, ahead_number);
  int ahead_run = 0;
  int ahead_slot = 0;
  const int output = first_output + static_cast<int>(threadIdx.x) % 8 * 8;
  const T* ahead_from = grad + ahead.first(f) * f.o + output;
  const unsigned to =
      ring + vector_place(static_cast<int>(threadIdx.x) / 8, static_cast<int>(threadIdx.x) % 8);
  const auto fetch_next = [&] {
    if (ahead_number < strips) {
      fetch_run(f, by_columns, ahead, ahead_from, output < f.o, ahead_run * kRun,
                to + static_cast<unsigned>(ahead_slot * kRunBytes));
      ahead_slot = ahead_slot + 1 == kRing ? 0 : ahead_slot + 1;
      if (++ahead_run == runs) {
        ahead_run = 0;
        ahead_number += gridDim.x;
        ahead = FewStrip(f, ahead_number);
        ahead_from = grad + ahead.first(f) * f.o + output;
      }
    }
    end_group();
  };
  // A warp has every fourth row of the image. With each run of a strip it stages some of its rows
  // of the next strip and replaces them by fetching those of the strip after that.
  const int rows_at_once = (f.staged_rows() + kFewWarps * runs - 1) / (kFewWarps * runs);
  FewStrip staging(f, blockIdx.x);
  FewStrip fetching(f, blockIdx.x + gridDim.x);
  const auto prepare = [&](int first, int last, bool stages, bool fetches, std::uint8_t* to) {
    for (int i = first; i < last; ++i) {
      const int row = i * kFewWarps + warp;
      if (row >= f.staged_rows()) break;
      if (stages) stage_row(f, staging, row, raw, to);
      __syncwarp();
      if (fetches) fetch_row(f, fetching, row, bytes, raw);
    }
  };

  const int all_rows = rows_at_once * runs;
  for (int row = warp; row < f.staged_rows(); row += kFewWarps) {
    fetch_row(f, staging, row, bytes, raw);
  }
  await_fetched();
  __syncwarp();
  prepare(0, all_rows, true, blockIdx.x + gridDim.x < strips, now);
  fetch_next();
  fetch_next();
  int slot = 0;
  for (unsigned number = blockIdx.x; number < strips; number += gridDim.x) {
    const bool stages = number + gridDim.x < strips;
    const bool fetches = number + 2 * gridDim.x < strips;
    staging = fetching;
    fetching = FewStrip(f, number + 2 * gridDim.x);
    for (int run = 0; run < runs; ++run) {
      // Wait for the run of gradients, and the rows of the image fetched during the last strip.
      if (runs > 1) {
        await_groups<1>();
      } else {
        await_groups<0>();
      }
      __syncthreads();
      prepare(run * rows_at_once, (run + 1) * rows_at_once, stages, fetches, next);
      fetch_next();
      const unsigned grads = ring + static_cast<unsigned>(slot * kRunBytes);
      slot = slot + 1 == kRing ? 0 : slot + 1;
      const unsigned windows =
          shared_address(now) + static_cast<unsigned>(lane / 16 * f.pitch() + piece * 16);
#pragma unroll
      for (int k = 0; k < kRun / 16 / kTurns; ++k) {
        const int part = kTurns == 1 ? k : k * kTurns + turn;
        unsigned a[4][4];
#pragma unroll
        for (int tile = 0; tile < 4; ++tile) {
          load_transposed(a[tile],
                          grads + vectors[tile] + static_cast<unsigned>(part * 16 * kRowBytes));
        }
        const int i = min(run * kRun + part * 16 + lane % 16, count - 1);
        const int row = by_columns.quotient(i);
        const unsigned window =
            windows + static_cast<unsigned>(2 * row * f.pitch() + by_columns.rest(i, row) * 16);
#pragma unroll
        for (int y = 0; y + 1 < kRows; y += 2) {
          unsigned b[4];
          load_transposed(b, window + static_cast<unsigned>(y * f.pitch()));
#pragma unroll
          for (int tile = 0; tile < 4; ++tile) {
            multiply_add(sums[tile][y], a[tile], b[0], b[1], T{});
            multiply_add(sums[tile][y + 1], a[tile], b[2], b[3], T{});
          }
        }
        if constexpr (kRows % 2 == 1) {
          unsigned b[2];
          load_transposed(b, window + static_cast<unsigned>((kRows - 1 - lane / 16) * f.pitch()));
#pragma unroll
          for (int tile = 0; tile < 4; ++tile) {
            multiply_add(sums[tile][kRows - 1], a[tile], b[0], b[1], T{});
          }
        }
      }
    }
    std::uint8_t* const then = now;
    now = next;
    next = then;
  }
  const std::int64_t part =
      (static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * kTurns + turn;
  float* mine = partial + part * kOutputs * kRows * kPieces * 8;
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
#pragma unroll
    for (int y = 0; y < kRows; ++y) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int channel = tile * 16 + half * 8 + lane / 4;
        *reinterpret_cast<float2*>(mine + ((channel * kRows + y) * kPieces + piece) * 8 +
                                   lane % 4 * 2) =
            make_float2(sums[tile][y][half * 2], sums[tile][y][half * 2 + 1]);
      }
    }
  }
}

constexpr int kSumThreads = 256;
constexpr int kSlices = 8;
constexpr int kSide = kSumThreads / kSlices;

// Adds up the `parts` sums of each weight and writes those that exist in the filter.
template <class U>
__global__ void few_filter_sums(const FewChannels f, const float* partial, int parts, U* filter) {
  __shared__ float slices[kSlices][kSide];
  const int taps = f.window_rows() * f.window_pieces() * 8;
  const int i = static_cast<int>(blockIdx.x * kSide + threadIdx.x % kSide);
  const int slice = static_cast<int>(threadIdx.x) / kSide;
  const int tile = kOutputs * taps;
  float total = 0;
  const float* from = partial + static_cast<std::int64_t>(blockIdx.y) * parts * tile + i;
#pragma unroll 8
  for (int part = slice; part < parts; part += kSlices) {
    total += from[static_cast<std::int64_t>(part) * tile];
  }
  slices[slice][threadIdx.x % kSide] = total;
  __syncthreads();
  if (slice > 0) return;
  for (int k = 1; k < kSlices; ++k) total += slices[k][threadIdx.x];
  const int channel = i % 4;
  const int x = i / 4 % (2 * f.window_pieces());
  const int y = i % taps / (8 * f.window_pieces());
  const int o = static_cast<int>(blockIdx.y) * kOutputs + i / taps;
  if (channel >= f.c || x >= f.kw || y >= f.kh || o >= f.o) return;
  filter[f.weight(o, y, x, channel)] = rounded<U>(total);
}

template <class T, int kRows, int kPieces>
void launch(const FewChannels& f, const void* image, const void* grad, void* partial,
            cudaStream_t stream) {
  const auto kernel = few_grad_filter<T, kRows, kPieces>;
  const int bytes = f.shared_bytes();
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "making room for a strip of an image");
  const dim3 grid(static_cast<unsigned>(f.blocks), static_cast<unsigned>(f.output_tiles()));
  kernel<<<grid, kFewThreads, static_cast<std::size_t>(bytes), stream>>>(
      f, static_cast<const T*>(image), static_cast<const T*>(grad), static_cast<float*>(partial));
}

template <class T>
void launch_window(const FewChannels& f, const void* image, const void* grad, void* partial,
                   cudaStream_t stream) {
  if (f.small_window) {
    launch<T, 3, 2>(f, image, grad, partial, stream);
  } else {
    launch<T, 7, 4>(f, image, grad, partial, stream);
  }
}

}  // namespace

void FewChannels::grad_filter(const void* image, const void* result_grad, void* filter_grad,
                              void* workspace, cudaStream_t stream) const {
  const auto kernel = dtype == DType::F16 ? launch_window<__half> : launch_window<__nv_bfloat16>;
  kernel(*this, image, result_grad, workspace, stream);
  check_launch("the filter's gradient of few channels");
  const int turns = kFewWarps / window_pieces();
  const int weights = kOutputs * window_rows() * window_pieces() * 8;
  const dim3 grid(static_cast<unsigned>(weights / kSide), static_cast<unsigned>(output_tiles()));
  cuda_dispatch_float(filter_dtype, [&](auto zero) {
    using U = decltype(zero);
    few_filter_sums<<<grid, kSumThreads, 0, stream>>>(*this, static_cast<const float*>(workspace),
                                                      blocks * turns, static_cast<U*>(filter_grad));
  });
  check_launch("adding up the filter's gradient");
}

}  // namespace lockstep
