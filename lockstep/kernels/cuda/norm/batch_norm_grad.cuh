// The first pass of batch norm's gradient (batch_norm_grad.cu), and what both passes share.
#pragma once

#include "lockstep/kernels/cuda/norm/batch_norm.cuh"

namespace lockstep {

// Where the mask of the activation comes from.
enum class Mask { None, FromResult, FromInput, FromBits };

template <class T>
struct NormGradient {
  const T* dy;
  const T* dy2;  // the other summand, if there is one
  const T* x;
  const T* y;                // with Mask::FromResult
  const std::uint8_t* bits;  // with Mask::FromBits
  const float* mean;
  const float* variance;
  const float* gamma;
  const float* beta;  // with Mask::FromInput
  T* dx;              // may be dy or x
  T* dresidual;       // if there is one; may also be dy
  float* dgamma;
  float* dbeta;
  float epsilon;
};

// A thread's channels: what both passes need of them.
template <int N, Mask kMask>
struct GradChannels {
  float mean[N];
  float scale[N];
  float beta[N];

  // Whether the activation passed an element on.
  template <class T>
  __device__ __forceinline__ bool passed(int i, float centered, float y, unsigned bits) const {
    if constexpr (kMask == Mask::FromResult) return y > 0;
    if constexpr (kMask == Mask::FromBits) return (bits >> i & 1U) != 0;
    if constexpr (kMask == Mask::FromInput) {
      return __fmaf_rn(centered, scale[i], beta[i]) > kStoredAsZero<T>;
    }
    return true;
  }
};

template <int N, Mask kMask, class T>
__device__ __forceinline__ GradChannels<N, kMask> load_channels(const ColumnPlace& p,
                                                                const NormGradient<T>& n) {
  alignas(16) __shared__ TileChannels means, scales, betas;
  for (int i = static_cast<int>(threadIdx.x); i < p.channels; i += kColumnThreads) {
    const int channel = p.first + i;
    means[i] = n.mean[channel];
    scales[i] = norm_scale(n.gamma[channel], reciprocal_deviation(n.variance[channel], n.epsilon));
    if constexpr (kMask == Mask::FromInput) betas[i] = n.beta[channel];
  }
  __syncthreads();
  GradChannels<N, kMask> c;
  if (p.active) {
    load_shared<N>(means + p.side, c.mean);
    load_shared<N>(scales + p.side, c.scale);
    if constexpr (kMask == Mask::FromInput) load_shared<N>(betas + p.side, c.beta);
  }
  return c;
}

// The vectors of one row that a thread has in flight.
template <class T, int N, Mask kMask>
struct GradVectors {
  Raw<T, N> dy, dy2, x, y;
  unsigned bits;
};

// dbeta and dgamma, and the residual's gradient if there is one. With a residual a thread has one
// row (three or more 16-byte loads) in flight, otherwise two.
template <class T, int N, Mask kMask, bool kResidual, bool kSummed>
__global__ void __launch_bounds__(kColumnThreads, kBlocksInPlace)
    norm_gradient_sums(const ChannelRows r, const ColumnGrid g, const NormGradient<T> n,
                       float* partial, unsigned* counters) {
  constexpr int kAtOnce = kResidual ? 1 : 2;
  __shared__ ColumnMemory<> memory;
  const ColumnPlace p = column_place<N>(r, g);
  const GradChannels<N, kMask> c = load_channels<N, kMask>(p, n);
  float sums[2][N] = {};
  if (p.active) {
    const auto load = [&](std::int64_t at) {
      GradVectors<T, N, kMask> vectors;
      vectors.dy = load_raw<T, N>(n.dy + at);
      if constexpr (kSummed) vectors.dy2 = load_raw<T, N>(n.dy2 + at);
      vectors.x = load_raw<T, N>(n.x + at);
      if constexpr (kMask == Mask::FromResult) vectors.y = load_raw<T, N>(n.y + at);
      if constexpr (kMask == Mask::FromBits) vectors.bits = n.bits[at / N];
      return vectors;
    };
    const auto take = [&](std::int64_t at, const GradVectors<T, N, kMask>& vectors) {
      float dz[N];
      float x[N];
      float y[N];
      unpack<T, N>(vectors.dy, dz);
      unpack<T, N>(vectors.x, x);
      if constexpr (kMask == Mask::FromResult) unpack<T, N>(vectors.y, y);
      if constexpr (kSummed) {
        float more[N];
        unpack<T, N>(vectors.dy2, more);
#pragma unroll
        for (int i = 0; i < N; ++i) dz[i] += more[i];
      }
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float centered = __fsub_rn(x[i], c.mean[i]);
        dz[i] = c.template passed<T>(i, centered, y[i], vectors.bits) ? dz[i] : 0.0F;
        sums[0][i] += dz[i];
        sums[1][i] = fmaf(dz[i], centered, sums[1][i]);
      }
      if constexpr (kResidual) store_floats<T, N>(n.dresidual + at, dz);
    };
    const std::int64_t stride = p.step * r.channels;
    std::int64_t at = p.row * r.channels + p.first + p.side;
    std::int64_t row = p.row;
    for (; row + (kAtOnce - 1) * p.step < r.rows; row += kAtOnce * p.step) {
      GradVectors<T, N, kMask> vectors[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) vectors[u] = load(at + u * stride);
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) take(at + u * stride, vectors[u]);
      at += kAtOnce * stride;
    }
    for (; row < r.rows; row += p.step, at += stride) take(at, load(at));
  }
  finish_columns<N>(r, g, p, sums, partial, counters, memory,
                    [&](int channel, const double(&totals)[2]) {
                      const float rstd = reciprocal_deviation(n.variance[channel], n.epsilon);
                      n.dbeta[channel] = static_cast<float>(totals[0]);
                      n.dgamma[channel] = static_cast<float>(totals[1] * static_cast<double>(rstd));
                    });
}

}  // namespace lockstep
