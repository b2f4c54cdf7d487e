// RowTeam: the threads that process one row of a value together, a warp, or a block if rows are
// long, and their collective operations. Sums have a fixed order: the same bits every time, and on
// every thread.
#pragma once

#include <cstdint>

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/vectors.cuh"

namespace lockstep {

inline constexpr int kTeamBlock = 256;          // threads per block
inline constexpr std::int64_t kWarpRow = 2048;  // longest row, in elements, for one warp

template <int kThreads>
struct RowTeam {
  static_assert(kThreads == 32 || kThreads == kTeamBlock);
  static constexpr int kRows = kTeamBlock / kThreads;  // per block

  __device__ static int thread() { return static_cast<int>(threadIdx.x) % kThreads; }
  __device__ static std::int64_t first_row() {
    return static_cast<std::int64_t>(blockIdx.x) * kRows + static_cast<int>(threadIdx.x) / kThreads;
  }
  __device__ static std::int64_t row_step() { return static_cast<std::int64_t>(gridDim.x) * kRows; }

  // A barrier for the team: no thread writes past it before all have read.
  __device__ static void wait() {
    if constexpr (kThreads == 32) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  __device__ static float sum(float value) {
    return combined(value, [](float a, float b) { return a + b; });
  }
  // Ignores NaN.
  __device__ static float largest(float value) {
    return combined(value, [](float a, float b) { return fmaxf(a, b); });
  }

 private:
  template <class F>
  __device__ static float combined(float value, F f) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      value = f(value, __shfl_xor_sync(0xFFFFFFFFU, value, distance));
    }
    if constexpr (kThreads > 32) {
      __shared__ float warps[kThreads / 32];
      if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
      __syncthreads();
      value = warps[0];
#pragma unroll
      for (int i = 1; i < kThreads / 32; ++i) value = f(value, warps[i]);
      __syncthreads();  // before the next
    }
    return value;
  }
};

// Calls f(index) with the first element of each vector of N that belongs to this thread.
template <class Team, int N, class F>
__device__ __forceinline__ void for_each_vector(std::int64_t elements, F&& f) {
  constexpr int kStep = N * kTeamBlock / Team::kRows;
  for (std::int64_t i = Team::thread() * N; i < elements; i += kStep) f(i);
}

// The number of blocks for so many rows.
template <class Team>
unsigned team_blocks(std::int64_t rows) {
  return cuda_blocks(rows, Team::kRows);
}

// Calls f(team, width) with the team and the vector width for rows of so many elements.
template <class T, class F>
void with_team(std::int64_t elements, bool aligned, F&& f) {
  const bool in_vectors = aligned && elements % kVectorSize<T> == 0;
  const auto with_width = [&](auto team) {
    if (in_vectors) {
      f(team, std::integral_constant<int, kVectorSize<T>>{});
    } else {
      f(team, std::integral_constant<int, 1>{});
    }
  };
  if (elements <= kWarpRow) {
    with_width(RowTeam<32>{});
  } else {
    with_width(RowTeam<kTeamBlock>{});
  }
}

}  // namespace lockstep
