// Batch norm, ReLU and max pooling, without writing the image between them.
//
// Forward, this replaces the second pass of batch_norm.cu: a thread processes windows of its
// channels. The normalised value grows with x if the scale is positive and falls if it is negative.
// So the x are compared, with their signs flipped in the latter case, and only the largest of a
// window is normalised.
//
// Backward, dz = dy where ReLU passed the winner on, otherwise 0. dbeta and dgamma are sums over
// the windows, of dz and of dz x̂ of the winner: the first pass of batch_norm_grad.cu computes them
// and writes dz. The second pass goes over the pixels (pool_grad.cuh), adds up dz of the windows
// that each pixel has won, and computes dx.
#include "lockstep/kernels/cuda/norm/batch_norm_pool.cuh"

#include "lockstep/kernels/cuda/norm/batch_norm_grad.cuh"
#include "lockstep/kernels/cuda/pool/pool_grad.cuh"
#include "lockstep/kernels/cuda/primitives/largest.cuh"

namespace lockstep {
namespace {

// The sign bits of a vector's elements whose scales are negative.
template <class T, int N>
__device__ __forceinline__ uint4 negative(const float (&scales)[N]) {
  constexpr int kBits = 8 * static_cast<int>(sizeof(T));
  unsigned words[4] = {};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (scales[i] < 0) words[i * kBits / 32] |= 1U << (i * kBits % 32 + kBits - 1);
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

__device__ __forceinline__ uint4 turned(const uint4& raw, const uint4& signs) {
  return make_uint4(raw.x ^ signs.x, raw.y ^ signs.y, raw.z ^ signs.z, raw.w ^ signs.w);
}

// The position of a row, with `height` × `width` rows per image.
__device__ __forceinline__ Place place_of(std::int64_t row, int height, int width) {
  const int at = static_cast<int>(row);
  const int line = at / width;
  const int image = line / height;
  return {image, line - image * height, at - line * width};
}

// From the last window to the first; each row of r is a window.
template <class T, int kWindow, int kStride>
__global__ void __launch_bounds__(kColumnThreads, kBlocksInPlace)
    normalise_windows(const ChannelRows r, const ColumnGrid g, const PoolShape s,
                      const Normalisation<T> n, const Winners<T> winners) {
  constexpr int N = kVectorSize<T>;
  using Best = typename LargestOf<T, N>::Type;
  alignas(16) __shared__ TileChannels means, scales, betas;
  const ColumnPlace p = pass_place<N>(r, g);
  for (int i = static_cast<int>(threadIdx.x); i < p.channels; i += kColumnThreads) {
    const int channel = p.first + i;
    const Statistics found = statistics_of(n.own, channel, p.block == 0);
    means[i] = found.mean;
    scales[i] = norm_scale(n.own.gamma[channel], reciprocal_deviation(found.variance, n.epsilon));
    betas[i] = n.own.beta[channel];
  }
  __syncthreads();
  if (!p.active) return;
  float scale[N];
  load_shared<N>(scales + p.side, scale);
  const uint4 signs = negative<T, N>(scale);
  const int channel = p.first + p.side;
#pragma unroll 1
  for (int u = 0; u < kPassRows; ++u) {
    const std::int64_t row = r.rows - 1 - p.row - u * p.step;
    if (row < 0) return;
    const Place window = place_of(row, s.oh, s.ow);
    const Place first{window.image, window.row * kStride - s.top, window.column * kStride - s.left};
    const Neighbours<kWindow> pixels(s, s.h, s.w, first);
    uint4 raws[kWindow * kWindow];
#pragma unroll
    for (int k = 0; k < kWindow * kWindow; ++k) {
      raws[k] = turned(Best::least(), signs);
      if (pixels.there[k]) raws[k] = load_raw<T, N>(n.own.x + pixels.at(k) + channel);
    }
    Best best(max(0, -first.row) * kWindow + max(0, -first.column));
#pragma unroll
    for (int k = 0; k < kWindow * kWindow; ++k) best.consider_value(turned(raws[k], signs), k);
    const uint4 won = turned(best.values(), signs);
    float values[N];
    float mean[N];
    float beta[N];
    unpack<T, N>(won, values);
    load_shared<N>(means + p.side, mean);
    load_shared<N>(betas + p.side, beta);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float value = normalised(values[i], mean[i], scale[i], beta[i]);
      values[i] = value < n.floor ? n.floor : value;  // NaN propagates
    }
    const std::int64_t to = row * r.channels + channel;
    store_floats<T, N>(n.y + to, values);
    *reinterpret_cast<uint4*>(winners.x + to) = won;
    best.store_places(winners.places + to);
  }
}

// dx from dz of the windows, dbeta and dgamma, from the last gap to the first; each row of r is a
// gap (WindowGaps). A thread processes its channels four at a time and reads their statistics from
// shared memory: keeping more in registers would reduce occupancy.
template <class T, int kWindow, int kStride>
__global__ void __launch_bounds__(kColumnThreads, kBlocksInPlace)
    pooled_gradient(const ChannelRows r, const ColumnGrid g, const PoolShape s,
                    const NormGradient<T> n, const std::uint8_t* places, const float share) {
  constexpr int N = kVectorSize<T>;
  constexpr int kFew = 4;
  constexpr int kPixels = kStride * kStride;
  alignas(16) __shared__ TileChannels means, scales, offsets, slopes;
  const ColumnPlace p = pass_place<N>(r, g);
  for (int i = static_cast<int>(threadIdx.x); i < p.channels; i += kColumnThreads) {
    const int channel = p.first + i;
    const float rstd = reciprocal_deviation(n.variance[channel], n.epsilon);
    means[i] = n.mean[channel];
    scales[i] = norm_scale(n.gamma[channel], rstd);
    offsets[i] = n.dbeta[channel] * share * scales[i];
    slopes[i] = n.dgamma[channel] * share * rstd * scales[i];
  }
  __syncthreads();
  if (!p.active) return;
  const WindowGaps gaps(s);
  const int channel = p.first + p.side;
#pragma unroll 1
  for (int u = 0; u < kPassRows; ++u) {
    const std::int64_t row = r.rows - 1 - p.row - u * p.step;
    if (row < 0) return;
    const Place gap = place_of(row, gaps.height, gaps.width);
    const auto pixels = gap_pixels<kStride>(s, gap);
    uint4 raws[kPixels];
#pragma unroll
    for (int q = 0; q < kPixels; ++q) {
      if (pixels.there[q]) raws[q] = load_raw<T, N>(n.x + pixels.at(q) + channel);
    }
    const ReachingWindows<T, std::uint8_t, N, kWindow, kStride> windows(s, n.dy, places, gap,
                                                                        channel);
#pragma unroll
    for (int first = 0; first < N; first += kFew) {
      float dz[kPixels][kFew] = {};
      windows.add(first, dz);
      float mean[kFew];
      float scale[kFew];
      float offset[kFew];
      float slope[kFew];
      load_shared<kFew>(means + p.side + first, mean);
      load_shared<kFew>(scales + p.side + first, scale);
      load_shared<kFew>(offsets + p.side + first, offset);
      load_shared<kFew>(slopes + p.side + first, slope);
#pragma unroll
      for (int q = 0; q < kPixels; ++q) {
        auto* few = reinterpret_cast<Raw<T, kFew>*>(reinterpret_cast<T*>(&raws[q]) + first);
        float x[kFew];
        unpack<T, kFew>(*few, x);
#pragma unroll
        for (int i = 0; i < kFew; ++i) {
          const float centered = __fsub_rn(x[i], mean[i]);
          x[i] = fmaf(-centered, slope[i], fmaf(scale[i], dz[q][i], -offset[i]));
        }
        *few = packed<T, kFew>(x);
      }
    }
#pragma unroll
    for (int q = 0; q < kPixels; ++q) {
      if (!pixels.there[q]) continue;
      *reinterpret_cast<uint4*>(n.dx + pixels.at(q) + channel) = raws[q];
    }
  }
}

ChannelRows rows_of(const PoolShape& s, std::int64_t height, std::int64_t width) {
  ChannelRows r;
  r.rows = s.n * height * width;
  r.channels = s.c;
  return r;
}

ChannelRows windows_of(const PoolShape& s) {
  return rows_of(s, s.oh, s.ow);
}

// The gradient's workspace holds dz, then the partial sums.
template <class T>
std::size_t dz_bytes(const ChannelRows& windows) {
  constexpr std::size_t kBoundary = 256;
  const auto elements =
      static_cast<std::size_t>(windows.rows) * static_cast<std::size_t>(windows.channels);
  return (sizeof(T) * elements + kBoundary - 1) / kBoundary * kBoundary;
}

PoolShape pool_of(const KernelCall& call) {
  return {call.in_shape(1), call.in_shape(0), call.attrs()};
}

template <class T>
std::unique_ptr<Kernel> make_of(const KernelCall& call) {
  const PoolShape s = pool_of(call);
  const ChannelRows windows = windows_of(s);
  const int multiprocessors = cuda_context(call).multiprocessors();
  const auto grids = ColumnGrids::of(windows, multiprocessors, T{});
  const auto counters = grids.make_counters(cuda_context(call).device());
  const auto epsilon = static_cast<float>(call.attrs().real("epsilon"));
  const bool summed = call.attrs().has("summands");
  return make_cuda_kernel([=](const Binding& b, cudaStream_t stream) {
    constexpr int N = kVectorSize<T>;
    if (s.c == 0) return;
    if (s.n == 0) {
      const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(s.c);
      for (const std::size_t i : {1, 2}) {
        check_cuda(cudaMemsetAsync(b.outputs[i], 0, bytes, stream), "zeroing a gradient");
      }
      return;
    }
    NormGradient<T> n{.dy = b.in<T>(0),
                      .dy2 = summed ? b.in<T>(8) : nullptr,
                      .x = b.in<T>(7),
                      .y = nullptr,
                      .bits = nullptr,
                      .mean = b.in<float>(2),
                      .variance = b.in<float>(3),
                      .gamma = b.in<float>(4),
                      .beta = b.in<float>(5),
                      .dx = b.out<T>(0),
                      .dresidual = reinterpret_cast<T*>(b.workspace),
                      .dgamma = b.out<float>(1),
                      .dbeta = b.out<float>(2),
                      .epsilon = epsilon};
    const std::uint8_t* places = b.in<std::uint8_t>(6);
    const T* image = b.in<T>(1);
    ensure(all_on_vector_boundaries(n.dy, n.dy2, n.x, places, image, n.dx, n.dresidual),
           "pooling requires values aligned to 16 bytes");
    auto* partial = reinterpret_cast<float*>(b.workspace + dz_bytes<T>(windows));
    auto* counts = reinterpret_cast<unsigned*>(counters->data());
    const auto sums = summed ? norm_gradient_sums<T, N, Mask::FromInput, true, true>
                             : norm_gradient_sums<T, N, Mask::FromInput, true, false>;
    sums<<<grids.wide.all_blocks(), kColumnThreads, 0, stream>>>(windows, grids.wide, n, partial,
                                                                 counts);
    check_launch("norm_gradient_sums");
    n.dy = n.dresidual;
    n.x = image;
    const WindowGaps gaps(s);
    const ChannelRows r = rows_of(s, gaps.height, gaps.width);
    const auto share = static_cast<float>(1.0 / (static_cast<double>(s.n) * s.h * s.w));
    const auto kernel = s.kh == 3 ? pooled_gradient<T, 3, 2> : pooled_gradient<T, 2, 2>;
    kernel<<<pass_blocks(r, grids.wide), kColumnThreads, 0, stream>>>(r, grids.wide, s, n, places,
                                                                      share);
    check_launch("pooled_gradient");
  });
}

std::unique_ptr<Kernel> make(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(1),
                             [&](auto zero) { return make_of<decltype(zero)>(call); });
}

std::size_t workspace_bytes(const KernelCall& call) {
  const ChannelRows windows = windows_of(pool_of(call));
  return cuda_dispatch_float(call.in_dtype(1), [&](auto zero) {
    const auto grids = ColumnGrids::of(windows, cuda_context(call).multiprocessors(), zero);
    return dz_bytes<decltype(zero)>(windows) + grids.workspace_bytes(windows);
  });
}

bool supports(const KernelCall& call) {
  return call.attrs().has("pool") && has_cuda_floats(call) && call.row_major() &&
         has_f32_channels(call, 2, 5) && pools_with_norm(call.input(1).type, call.attrs());
}

}  // namespace

template <class T>
void normalise_and_pool(const PoolShape& pool, const ColumnGrid& grid, const Normalisation<T>& n,
                        const Winners<T>& winners, cudaStream_t stream) {
  ensure(all_on_vector_boundaries(n.own.x, n.y, winners.places, winners.x),
         "pooling requires values aligned to 16 bytes");
  const ChannelRows r = windows_of(pool);
  const auto kernel = pool.kh == 3 ? normalise_windows<T, 3, 2> : normalise_windows<T, 2, 2>;
  kernel<<<pass_blocks(r, grid), kColumnThreads, 0, stream>>>(r, grid, pool, n, winners);
  check_launch("normalise_windows");
}

template void normalise_and_pool(const PoolShape&, const ColumnGrid&, const Normalisation<float>&,
                                 const Winners<float>&, cudaStream_t);
template void normalise_and_pool(const PoolShape&, const ColumnGrid&, const Normalisation<__half>&,
                                 const Winners<__half>&, cudaStream_t);
template void normalise_and_pool(const PoolShape&, const ColumnGrid&,
                                 const Normalisation<__nv_bfloat16>&, const Winners<__nv_bfloat16>&,
                                 cudaStream_t);

void add_cuda_batch_norm_pool_grad(KernelLibrary& library) {
  library.add(Op::BatchNormGrad, {.name = "cuda.batch_norm_pool_grad",
                                  .supports = supports,
                                  .make = make,
                                  .workspace_bytes = workspace_bytes});
}

}  // namespace lockstep
