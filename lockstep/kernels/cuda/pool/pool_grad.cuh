// Max pooling's gradient for square windows of kWindow × kWindow with stride kStride: a thread
// computes the kStride × kStride pixels between the beginnings of two windows (a gap). Few windows
// cover them, and each is read once for all of them.
#pragma once

#include "lockstep/kernels/cuda/pool/pool.cuh"

namespace lockstep {

// The number of gaps between the beginnings of windows, including those before the first ones.
struct WindowGaps {
  int height, width;

  __host__ __device__ explicit WindowGaps(const PoolShape& p)
      : height((p.h + p.top + p.stride_h - 1) / p.stride_h),
        width((p.w + p.left + p.stride_w - 1) / p.stride_w) {}
};

// The position of a window or a gap.
struct Place {
  int image, row, column;
};

// kSide × kSide neighbouring pixels in images of height × width; some may be outside the image.
// Offsets are computed from the first.
template <int kSide>
struct Neighbours {
  std::int64_t first;
  int line, step;
  bool there[kSide * kSide];

  __device__ __forceinline__ Neighbours(const PoolShape& p, int height, int width,
                                        const Place& place)
      : first(pixel_at(p, height, width, place.image, place.row, place.column)),
        line(width * p.c),
        step(p.c) {
#pragma unroll
    for (int k = 0; k < kSide * kSide; ++k) {
      const int i = place.row + k / kSide;
      const int j = place.column + k % kSide;
      there[k] = i >= 0 && i < height && j >= 0 && j < width;
    }
  }
  __device__ __forceinline__ std::int64_t at(int k) const {
    return first + k / kSide * line + k % kSide * step;
  }
};

// The pixels of a gap.
template <int kStride>
__device__ __forceinline__ Neighbours<kStride> gap_pixels(const PoolShape& p, const Place& gap) {
  return {p, p.h, p.w, {gap.image, gap.row * kStride - p.top, gap.column * kStride - p.left}};
}

// The windows that cover a gap's pixels: dy and the argmax indices.
template <class T, class Index, int N, int kWindow, int kStride>
struct ReachingWindows {
  static constexpr int kBack = (kWindow - 1) / kStride;  // windows before the gap's own one
  static constexpr int kSide = kBack + 1;
  Raw<T, N> gradients[kSide * kSide] = {};
  Raw<Index, N> winners[kSide * kSide];
  Neighbours<kSide> windows;

  __device__ __forceinline__ ReachingWindows(const PoolShape& p, const T* dy, const Index* index,
                                             const Place& gap, int channel)
      : windows(p, p.oh, p.ow, {gap.image, gap.row - kBack, gap.column - kBack}) {
#pragma unroll
    for (int k = 0; k < kSide * kSide; ++k) {
      if (!windows.there[k]) continue;
      gradients[k] = load_raw<T, N>(dy + windows.at(k) + channel);
      winners[k] = load_raw<Index, N>(index + windows.at(k) + channel);
    }
  }

  // For kChannels channels from `first`, adds dy of the windows a pixel has won to its sum.
  template <int kChannels>
  __device__ __forceinline__ void add(int first,
                                      float (&sums)[kStride * kStride][kChannels]) const {
#pragma unroll
    for (int k = 0; k < kSide * kSide; ++k) {
      if (!windows.there[k]) continue;
      const T* values = reinterpret_cast<const T*>(&gradients[k]) + first;
      const Index* won = reinterpret_cast<const Index*>(&winners[k]) + first;
#pragma unroll
      for (int q = 0; q < kStride * kStride; ++q) {
        // The pixel's position in the window.
        const int i = q / kStride + (kBack - k / kSide) * kStride;
        const int j = q % kStride + (kBack - k % kSide) * kStride;
        if (i >= kWindow || j >= kWindow) continue;
#pragma unroll
        for (int c = 0; c < kChannels; ++c) {
          if (static_cast<int>(won[c]) == i * kWindow + j) sums[q][c] += as_float(values[c]);
        }
      }
    }
  }
};

}  // namespace lockstep
