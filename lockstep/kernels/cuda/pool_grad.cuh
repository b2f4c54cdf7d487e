// Max pooling's gradient for windows of kWindow by kWindow at every kStride, as many rows as
// columns: a thread has the pixels between one window's beginning and the next one's, kStride by
// kStride of them, which few windows cover, each read once for all.
#pragma once

#include "lockstep/kernels/cuda/pool.cuh"

namespace lockstep {

// The gaps between the windows' beginnings, those before the first ones included.
struct WindowGaps {
  int height, width;

  __host__ __device__ explicit WindowGaps(const PoolShape& p)
      : height((p.h + p.top + p.stride_h - 1) / p.stride_h),
        width((p.w + p.left + p.stride_w - 1) / p.stride_w) {}
};

// Of a window, or of a gap.
struct Place {
  int image, row, column;
};

// Where pixel q of a gap begins, or -1 where it is none of the image's.
template <int kStride>
__device__ __forceinline__ std::int64_t gap_pixel(const PoolShape& p, const Place& gap, int q) {
  const int i = gap.row * kStride - p.top + q / kStride;
  const int j = gap.column * kStride - p.left + q % kStride;
  const bool inside = i >= 0 && i < p.h && j >= 0 && j < p.w;
  return inside ? pixel_at(p, p.h, p.w, gap.image, i, j) : -1;
}

// Adds to the sum of each pixel of a gap what dy is in the windows that it won.
template <class T, class Index, int N, int kWindow, int kStride>
__device__ __forceinline__ void add_windows(const PoolShape& p, const T* dy, const Index* index,
                                            const Place& gap, int channel,
                                            float (&sums)[kStride * kStride][N]) {
  constexpr int kBack = (kWindow - 1) / kStride;  // windows before that reach the gap's pixels
  constexpr int kAxis = kBack + 1;
  Raw<T, N> gradients[kAxis * kAxis] = {};
  Raw<Index, N> winners[kAxis * kAxis];
  bool there[kAxis * kAxis];
#pragma unroll
  for (int k = 0; k < kAxis * kAxis; ++k) {
    const int i = gap.row - kBack + k / kAxis;
    const int j = gap.column - kBack + k % kAxis;
    there[k] = i >= 0 && i < p.oh && j >= 0 && j < p.ow;
    if (!there[k]) continue;
    const std::int64_t at = pixel_at(p, p.oh, p.ow, gap.image, i, j) + channel;
    gradients[k] = load_raw<T, N>(dy + at);
    winners[k] = load_raw<Index, N>(index + at);
  }
#pragma unroll
  for (int k = 0; k < kAxis * kAxis; ++k) {
    if (!there[k]) continue;
    float values[N];
    unpack<T, N>(gradients[k], values);
    const Index* won = reinterpret_cast<const Index*>(&winners[k]);
#pragma unroll
    for (int q = 0; q < kStride * kStride; ++q) {
      // The pixel's place in the window.
      const int i = q / kStride + (kBack - k / kAxis) * kStride;
      const int j = q % kStride + (kBack - k % kAxis) * kStride;
      if (i >= kWindow || j >= kWindow) continue;
#pragma unroll
      for (int c = 0; c < N; ++c) {
        if (static_cast<int>(won[c]) == i * kWindow + j) sums[q][c] += values[c];
      }
    }
  }
}

}  // namespace lockstep
