// What the pooling kernels over (N, H, W, C) images have in common. A block processes a row of
// pixels, of the result in the forward pass and of the image in the backward pass. Its threads are
// arranged along columns and channels, with a vector of channels each, so that accesses are
// coalesced. In the backward pass each pixel of the image gathers from the windows that cover it,
// so no two threads write the same element.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/vectors.cuh"

namespace lockstep {

struct PoolShape {
  std::int64_t n = 0;
  int h = 0, w = 0, c = 0, oh = 0, ow = 0;
  int kh = 0, kw = 0, stride_h = 0, stride_w = 0, top = 0, left = 0;

  PoolShape(const Shape& x, const Shape& y, const Attrs& attrs) : n(x[0]) {
    const auto number = [](std::int64_t value) { return static_cast<int>(value); };
    h = number(x[1]);
    w = number(x[2]);
    c = number(x[3]);
    oh = number(y[1]);
    ow = number(y[2]);
    kh = number(attrs.ints("window")[0]);
    kw = number(attrs.ints("window")[1]);
    stride_h = number(attrs.ints("strides")[0]);
    stride_w = number(attrs.ints("strides")[1]);
    top = number(attrs.ints("padding")[0]);
    left = number(attrs.ints("padding")[2]);
  }

  bool empty() const { return n == 0 || c == 0; }
};

// One axis of a window that begins at `start`, padding included: the part inside the image.
struct Span {
  int start, begin, end;

  __device__ Span(int start_, int window, int extent)
      : start(start_), begin(max(0, -start_)), end(min(window, extent - start_)) {}
  __device__ int size() const { return end - begin; }
};

// One axis of the windows that cover a position of the image: [first, last].
struct Cover {
  int first, last;

  __device__ Cover(int place, int before, int window, int stride, int windows)
      : first(max(0, (place + before - window + stride) / stride)),
        last(min(windows - 1, (place + before) / stride)) {
    if (place + before < window) first = 0;
  }
};

// Threads for a row of so many vectors: whole warps, all busy in each round.
inline unsigned pool_threads(int vectors) {
  constexpr int kMost = 256;
  const int rounds = (vectors + kMost - 1) / kMost;
  const int each = (vectors + rounds - 1) / rounds;
  return static_cast<unsigned>((each + 31) / 32 * 32);
}

struct PoolLaunch {
  unsigned blocks, threads;

  // For rows of `width` pixels, in vectors of `vector_size` channels.
  PoolLaunch(std::int64_t rows, int width, int channels, int vector_size)
      : blocks(cuda_blocks(rows, 1)), threads(pool_threads(width * (channels / vector_size))) {}
};

// Calls f(image, row, column, channel) for each vector of N channels of this thread, in images of
// height × width.
template <int N, class F>
__device__ __forceinline__ void for_each_pixel(const PoolShape& p, int height, int width, F&& f) {
  const int lines = static_cast<int>(p.n) * height;
  const int vectors = p.c / N;
  for (int line = static_cast<int>(blockIdx.x); line < lines; line += static_cast<int>(gridDim.x)) {
    const int image = line / height;
    for (int item = static_cast<int>(threadIdx.x); item < width * vectors;
         item += static_cast<int>(blockDim.x)) {
      const int column = item / vectors;
      f(image, line - image * height, column, (item - column * vectors) * N);
    }
  }
}

// The offset of a pixel's channels, in images of height × width.
__device__ __forceinline__ std::int64_t pixel_at(const PoolShape& p, int height, int width,
                                                 int image, int row, int column) {
  return ((static_cast<std::int64_t>(image) * height + row) * width + column) * p.c;
}

// The kernels count rows of pixels in 32 bits.
inline bool supports_pool(const KernelCall& call, const Shape& x) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - (1 << 20);
  return has_cuda_floats(call) && call.row_major() &&
         x[0] * std::max<std::int64_t>(x[1], 1) < kMost && x[2] * x[3] < kMost;
}

// Whether 32 bits are enough for offsets within a few lines of an image.
inline bool has_short_lines(std::int64_t width, std::int64_t channels) {
  return width * channels < (std::int64_t{1} << 29);
}

// Whether batch_norm_pool.cu has kernels for an image and its windows: full vectors, and a number
// of pixels that fits into 32 bits.
inline bool pools_with_norm(const ValueType& image, const Attrs& attrs) {
  const auto is = [&](std::int64_t window, std::int64_t stride) {
    return attrs.ints("window") == Ints{window, window} &&
           attrs.ints("strides") == Ints{stride, stride};
  };
  const Shape& x = image.shape;
  const auto bytes = static_cast<std::int64_t>(size_of(image.dtype)) * x[3];
  return (is(3, 2) || is(2, 2)) && bytes % 16 == 0 && has_short_lines(x[2], x[3]) &&
         x.elements() / std::max<std::int64_t>(x[3], 1) < std::numeric_limits<std::int32_t>::max();
}

}  // namespace lockstep
