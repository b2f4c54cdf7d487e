// The convolution itself, as a matrix product (results, window) · (window, output channels).
//
// Two of a block's four warps compute 32 of its 64 output channels each and keep their filters in
// registers throughout; the other two warps compute the same channels of other results. A warp
// takes 32 results at a time. The assignment of channels to columns of the product is free; it is
// chosen so that a thread ends up with eight consecutive channels of a result, which it stores at
// once. While a strip is computed, the next one is staged and the one after that is fetched.
#include <algorithm>

#include "lockstep/kernels/cuda/conv/conv_small_channels.cuh"
#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/vectors.cuh"

namespace lockstep {
namespace {

constexpr int kOutputs = FewChannels::kOutputs;
constexpr int kWarpOutputs = 32;
constexpr int kTiles = 2;  // of 16 results, that a warp computes at once

template <int kRows, int kPieces>
struct FilterMatrix {
  static constexpr int kTaps = kRows * kPieces * 8;  // per output channel
  static constexpr int kSteps = kTaps / 16;
  static constexpr int kBytes = kOutputs * kTaps * 2;
};

// The filters of a block as (64, rows, pixels, 4), padded with zeros.
template <int kRows, int kPieces>
__device__ void stage_filter(const FewChannels& f, const std::uint16_t* filter, int first,
                             std::uint16_t* staged) {
  constexpr int kTaps = FilterMatrix<kRows, kPieces>::kTaps;
#pragma unroll 8
  for (int i = static_cast<int>(threadIdx.x); i < kOutputs * kTaps; i += kFewThreads) {
    const int channel = i % 4;
    const int x = i / 4 % (2 * kPieces);
    const int y = i % kTaps / (8 * kPieces);
    const int o = first + i / kTaps;
    const bool exists = channel < f.c && x < f.kw && y < f.kh && o < f.o;
    staged[i] = exists ? filter[f.weight(o, y, x, channel)] : std::uint16_t{0};
  }
}

// The distance of result i of a strip from its first one; -1 if there is no such result.
__device__ __forceinline__ int result_place(const FewChannels& f, const FewStrip& s,
                                            const SmallDivisor& by_columns, int i) {
  const bool exists = i < s.results(f);
  if (f.across == 1) return exists ? i : -1;
  const int row = by_columns.quotient(i);
  const int column = by_columns.rest(i, row);
  return exists && s.column + column < f.ow ? row * f.ow + column : -1;
}

// partial is (channel tiles, blocks, 2, 64): the sums of each block and of their squares.
template <class T, int kRows, int kPieces, bool kStatistics>
__global__ void __launch_bounds__(kFewThreads, kFewInPlace)
    few_forward(const FewChannels f, const T* image, const T* filter, T* result, float* partial) {
  using Matrix = FilterMatrix<kRows, kPieces>;
  extern __shared__ __align__(16) std::uint8_t memory[];
  std::uint8_t* raw = memory + 2 * f.staged_rows() * f.pitch();  // after two staged strips
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int first_output = static_cast<int>(blockIdx.y) * kOutputs;
  const int warp_output = warp % 2 * kWarpOutputs;

  unsigned weights[Matrix::kSteps][4][2];
  {
    auto* filters = reinterpret_cast<std::uint16_t*>(memory);
    stage_filter<kRows, kPieces>(f, reinterpret_cast<const std::uint16_t*>(filter), first_output,
                                 filters);
    __syncthreads();
    const int column = lane / 4;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int output = warp_output + column / 2 * 8 + 2 * j + column % 2;
      const auto* taps = reinterpret_cast<const unsigned*>(filters + output * Matrix::kTaps);
#pragma unroll
      for (int step = 0; step < Matrix::kSteps; ++step) {
        weights[step][j][0] = taps[step * 8 + lane % 4];
        weights[step][j][1] = taps[step * 8 + lane % 4 + 4];
      }
    }
    __syncthreads();
  }

  float sums[8] = {};
  float squares[8] = {};
  const SmallDivisor by_columns(f.columns);
  const int output = first_output + warp_output + lane % 4 * 8;
  const bool stores = output < f.o;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(image);
  const unsigned strips = static_cast<unsigned>(f.strips());

  // A warp has every fourth row: it fetches the row, stages it once it has arrived, and fetches the
  // same row of the strip after that.
  const auto fetch_rows = [&](unsigned number) {
    if (number >= strips) return;
    const FewStrip strip(f, number);
    for (int row = warp; row < f.staged_rows(); row += kFewWarps) {
      fetch_row(f, strip, row, bytes, raw);
    }
  };
  const auto prepare = [&](unsigned number, std::uint8_t* staged) {
    if (number >= strips) return;
    await_fetched();
    __syncwarp();
    const FewStrip strip(f, number);
    for (int row = warp; row < f.staged_rows(); row += kFewWarps) {
      stage_row(f, strip, row, raw, staged);
    }
    __syncwarp();
    fetch_rows(number + gridDim.x);
  };

  const auto compute = [&](unsigned number, const std::uint8_t* staged) {
    const FewStrip strip(f, number);
    const int count = strip.results(f);
    T* to = result + strip.first(f) * f.o + output;
    const unsigned windows = shared_address(staged) + static_cast<unsigned>(lane / 16 * 16);
    for (int first = warp / 2 * kTiles * 16; first < count; first += 2 * kTiles * 16) {
      unsigned window[kTiles];
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int i = min(first + tile * 16 + lane % 16, count - 1);
        const int row = by_columns.quotient(i);
        window[tile] =
            windows + static_cast<unsigned>(2 * row * f.pitch() + by_columns.rest(i, row) * 16);
      }
      float products[kTiles][4][4] = {};
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int pair = 0; pair < kPieces / 2; ++pair) {
          const int step = row * (kPieces / 2) + pair;
          unsigned a[kTiles][4];
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
            load_matrices(a[tile], window[tile] + pair * 32);
          }
#pragma unroll
          for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              multiply_add(products[tile][j], a[tile], weights[step][j][0], weights[step][j][1],
                           T{});
            }
          }
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) window[tile] += static_cast<unsigned>(f.pitch());
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int place =
              result_place(f, strip, by_columns, first + tile * 16 + half * 8 + lane / 4);
          const bool exists = place >= 0 && stores;
          float values[8];
#pragma unroll
          for (int j = 0; j < 8; ++j) values[j] = products[tile][j / 2][half * 2 + j % 2];
          const Raw<T, 8> vector = packed<T, 8>(values);
          if (!exists) continue;
          *reinterpret_cast<Raw<T, 8>*>(to + place * f.o) = vector;
          if constexpr (kStatistics) {
            unpack<T, 8>(vector, values);
#pragma unroll
            for (int j = 0; j < 8; ++j) {
              sums[j] += values[j];
              squares[j] += values[j] * values[j];
            }
          }
        }
      }
    }
  };

  fetch_rows(blockIdx.x);
  prepare(blockIdx.x, memory);
  __syncthreads();
  std::uint8_t* now = memory;
  std::uint8_t* next = memory + f.staged_rows() * f.pitch();
  for (unsigned number = blockIdx.x; number < strips; number += gridDim.x) {
    // Half of the warps prepare first, so that the tensor cores do not idle.
#pragma unroll 1
    for (int turn = 0; turn < 2; ++turn) {
      if ((turn + warp / 2) % 2 == 0) {
        prepare(number + gridDim.x, next);
      } else {
        compute(number, now);
      }
    }
    __syncthreads();
    std::uint8_t* const then = now;
    now = next;
    next = then;
  }
  if constexpr (kStatistics) {
    auto* shared = reinterpret_cast<float*>(memory);  // (2 warps, 2, 64)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int distance = 4; distance < 32; distance *= 2) {
        sums[j] += __shfl_xor_sync(0xffffffffu, sums[j], distance);
        squares[j] += __shfl_xor_sync(0xffffffffu, squares[j], distance);
      }
      if (lane < 4) {
        const int place = warp / 2 * 2 * kOutputs + warp_output + lane * 8 + j;
        shared[place] = sums[j];
        shared[place + kOutputs] = squares[j];
      }
    }
    __syncthreads();
    const int i = static_cast<int>(threadIdx.x);
    static_assert(kFewThreads == 2 * kOutputs);
    partial[(static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * 2 * kOutputs + i] =
        shared[i] + shared[2 * kOutputs + i];
  }
}

// The sums of all blocks, always in the same order; one block per 64 output channels.
__global__ void few_statistics(const float* partial, int blocks, int o, float* sums,
                               float* squares) {
  const int i = static_cast<int>(threadIdx.x) % (2 * kOutputs);
  constexpr int kSlices = 8;
  __shared__ double slices[kSlices][2 * kOutputs];
  const int slice = static_cast<int>(threadIdx.x) / (2 * kOutputs);
  double total = 0;
  const float* from = partial + static_cast<std::int64_t>(blockIdx.x) * blocks * 2 * kOutputs + i;
#pragma unroll 8
  for (int block = slice; block < blocks; block += kSlices) {
    total += static_cast<double>(from[static_cast<std::int64_t>(block) * 2 * kOutputs]);
  }
  slices[slice][i] = total;
  __syncthreads();
  if (slice > 0) return;
  for (int k = 1; k < kSlices; ++k) total += slices[k][i];
  const int output = static_cast<int>(blockIdx.x) * kOutputs + i % kOutputs;
  if (output >= o) return;
  (i < kOutputs ? sums : squares)[output] = static_cast<float>(total);
}

template <class T, int kRows, int kPieces, bool kStatistics>
void launch(const FewChannels& f, const void* image, const void* filter, void* result,
            void* partial, cudaStream_t stream) {
  const auto kernel = few_forward<T, kRows, kPieces, kStatistics>;
  const int bytes = f.shared_bytes();
  static_assert(FilterMatrix<kRows, kPieces>::kBytes <= FewChannels::kLeastShared);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
             "making room for a strip of an image");
  const dim3 grid(static_cast<unsigned>(f.blocks), static_cast<unsigned>(f.output_tiles()));
  kernel<<<grid, kFewThreads, static_cast<std::size_t>(bytes), stream>>>(
      f, static_cast<const T*>(image), static_cast<const T*>(filter), static_cast<T*>(result),
      static_cast<float*>(partial));
}

template <class T, bool kStatistics>
void launch_window(const FewChannels& f, const void* image, const void* filter, void* result,
                   void* partial, cudaStream_t stream) {
  if (f.small_window) {
    launch<T, 3, 2, kStatistics>(f, image, filter, result, partial, stream);
  } else {
    launch<T, 7, 4, kStatistics>(f, image, filter, result, partial, stream);
  }
}

}  // namespace

void FewChannels::forward(const void* image, const void* filter, void* result, void* sums,
                          void* squares, void* workspace, cudaStream_t stream) const {
  const auto launch_type = [&](auto zero) {
    using T = decltype(zero);
    const auto kernel = statistics ? launch_window<T, true> : launch_window<T, false>;
    kernel(*this, image, filter, result, workspace, stream);
  };
  dtype == DType::F16 ? launch_type(__half{}) : launch_type(__nv_bfloat16{});
  check_launch("a convolution of few channels");
  if (!statistics) return;
  few_statistics<<<static_cast<unsigned>(output_tiles()), 16 * kOutputs, 0, stream>>>(
      static_cast<const float*>(workspace), blocks, o, static_cast<float*>(sums),
      static_cast<float*>(squares));
  check_launch("adding up statistics");
}

}  // namespace lockstep
