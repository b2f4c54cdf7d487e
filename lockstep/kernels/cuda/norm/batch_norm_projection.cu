// The gradients of two batch norms whose sum goes through a ReLU: a residual block with a
// projection. Both have the same dz = dy (in one or two summands) where ReLU was active, otherwise
// 0, and so the same dbeta = Σ dz. For each, over R rows, dgamma = Σ dz x̂ and
// dx = gamma · rstd · (dz - dbeta / R - x̂ dgamma / R).
//
// Two passes as in batch_norm_grad.cu, each over both inputs: what they share is read once. dz is
// recomputed in the second pass and never written.
#include "lockstep/kernels/cuda/norm/batch_norm.cuh"

namespace lockstep {
namespace {

template <class T>
struct GradSide {
  const T* x;
  const float* mean;
  const float* variance;
  const float* gamma;
  T* dx;  // the first side's may be dy
  float* dgamma;
  float* dbeta;
};

template <class T>
struct ProjectionGradient {
  const T* dy;
  const T* dy2;              // the other summand, if there is one
  const T* y;                // its sign is the mask, or
  const std::uint8_t* bits;  // the mask as bits
  GradSide<T> sides[2];
  float epsilon;
  float share;  // one over the rows
};

// The vectors of a row that a thread has in flight.
template <class T, int N>
struct ProjectionVectors {
  Raw<T, N> dy, dy2, y, x[2];
  unsigned bits;
};

template <class T, int N, bool kBits, bool kSummed>
__device__ __forceinline__ ProjectionVectors<T, N> load_vectors(const ProjectionGradient<T>& n,
                                                                std::int64_t at) {
  ProjectionVectors<T, N> vectors;
  vectors.dy = load_raw<T, N>(n.dy + at);
  if constexpr (kSummed) vectors.dy2 = load_raw<T, N>(n.dy2 + at);
  if constexpr (kBits) {
    vectors.bits = n.bits[at / N];
  } else {
    vectors.y = load_raw<T, N>(n.y + at);
  }
#pragma unroll
  for (int s = 0; s < 2; ++s) vectors.x[s] = load_raw<T, N>(n.sides[s].x + at);
  return vectors;
}

template <class T, int N, bool kBits, bool kSummed>
__device__ __forceinline__ void masked_gradient(const ProjectionVectors<T, N>& vectors,
                                                float (&dz)[N]) {
  float more[N];
  float y[N];
  unpack<T, N>(vectors.dy, dz);
  if constexpr (kSummed) unpack<T, N>(vectors.dy2, more);
  if constexpr (!kBits) unpack<T, N>(vectors.y, y);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (kSummed) dz[i] += more[i];
    const bool passed = kBits ? (vectors.bits >> i & 1U) != 0 : y[i] > 0;
    dz[i] = passed ? dz[i] : 0.0F;
  }
}

template <class T, int N, bool kBits, bool kSummed>
__global__ void __launch_bounds__(kColumnThreads, kBlocksInPlace)
    projection_sums(const ChannelRows r, const ColumnGrid g, const ProjectionGradient<T> n,
                    float* partial, unsigned* counters) {
  __shared__ ColumnMemory<3> memory;
  const ColumnPlace p = column_place<N>(r, g);
  float sums[3][N] = {};
  if (p.active) {
    float mean[2][N];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int i = 0; i < N; ++i) mean[s][i] = n.sides[s].mean[p.first + p.side + i];
    }
    const std::int64_t stride = p.step * r.channels;
    std::int64_t at = p.row * r.channels + p.first + p.side;
    for (std::int64_t row = p.row; row < r.rows; row += p.step, at += stride) {
      const auto vectors = load_vectors<T, N, kBits, kSummed>(n, at);
      float dz[N];
      masked_gradient<T, N, kBits, kSummed>(vectors, dz);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[0][i] += dz[i];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        float x[N];
        unpack<T, N>(vectors.x[s], x);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          sums[1 + s][i] = fmaf(dz[i], __fsub_rn(x[i], mean[s][i]), sums[1 + s][i]);
        }
      }
    }
  }
  finish_columns<N>(
      r, g, p, sums, partial, counters, memory, [&](int channel, const double(&totals)[3]) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          const GradSide<T>& side = n.sides[s];
          const float rstd = reciprocal_deviation(side.variance[channel], n.epsilon);
          side.dbeta[channel] = static_cast<float>(totals[0]);
          side.dgamma[channel] = static_cast<float>(totals[1 + s] * static_cast<double>(rstd));
        }
      });
}

// dx of both inputs, from dbeta and dgamma.
template <class T, int N, bool kBits, bool kSummed>
__global__ void __launch_bounds__(kColumnThreads, kPassMinBlocks)
    projection_gradient(const ChannelRows r, const ColumnGrid g, const ProjectionGradient<T> n) {
  constexpr int kAtOnce = 2;
  alignas(16) __shared__ TileChannels offsets, means[2], scales[2], slopes[2];
  const ColumnPlace p = pass_place<N>(r, g);
  for (int i = static_cast<int>(threadIdx.x); i < p.channels; i += kColumnThreads) {
    const int channel = p.first + i;
    offsets[i] = n.sides[0].dbeta[channel] * n.share;
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const GradSide<T>& side = n.sides[s];
      const float rstd = reciprocal_deviation(side.variance[channel], n.epsilon);
      means[s][i] = side.mean[channel];
      scales[s][i] = norm_scale(side.gamma[channel], rstd);
      slopes[s][i] = side.dgamma[channel] * n.share * rstd;
    }
  }
  __syncthreads();
  if (!p.active) return;
  float offset[N];
  load_shared<N>(offsets + p.side, offset);
  const auto put = [&](std::int64_t at, const ProjectionVectors<T, N>& vectors) {
    float dz[N];
    masked_gradient<T, N, kBits, kSummed>(vectors, dz);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      float x[N];
      float mean[N];
      float scale[N];
      float slope[N];
      unpack<T, N>(vectors.x[s], x);
      load_shared<N>(means[s] + p.side, mean);
      load_shared<N>(scales[s] + p.side, scale);
      load_shared<N>(slopes[s] + p.side, slope);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float centered = __fsub_rn(x[i], mean[i]);
        x[i] = scale[i] * fmaf(-centered, slope[i], dz[i] - offset[i]);
      }
      store_floats<T, N>(n.sides[s].dx + at, x);
    }
  };
  const std::int64_t stride = p.step * r.channels;
  const std::int64_t begin = (r.rows - 1 - p.row) * r.channels + p.first + p.side;
#pragma unroll
  for (int first = 0; first < kPassRows; first += kAtOnce) {
    ProjectionVectors<T, N> vectors[kAtOnce];
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (p.row + (first + u) * p.step >= r.rows) continue;
      vectors[u] = load_vectors<T, N, kBits, kSummed>(n, begin - (first + u) * stride);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (p.row + (first + u) * p.step < r.rows) put(begin - (first + u) * stride, vectors[u]);
    }
  }
}

template <class T, int N, bool kBits, bool kSummed>
void launch_both(const ChannelRows& r, const ColumnGrid& g, const ProjectionGradient<T>& n,
                 float* partial, unsigned* counters, cudaStream_t stream) {
  projection_sums<T, N, kBits, kSummed>
      <<<g.all_blocks(), kColumnThreads, 0, stream>>>(r, g, n, partial, counters);
  check_launch("projection_sums");
  projection_gradient<T, N, kBits, kSummed>
      <<<pass_blocks(r, g), kColumnThreads, 0, stream>>>(r, g, n);
  check_launch("projection_gradient");
}

template <class T, int N>
void launch(const ChannelRows& r, const ColumnGrid& g, const ProjectionGradient<T>& n,
            float* partial, unsigned* counters, cudaStream_t stream) {
  const bool summed = n.dy2 != nullptr;
  if constexpr (N == 8) {
    if (n.bits != nullptr) {
      const auto both = summed ? launch_both<T, N, true, true> : launch_both<T, N, true, false>;
      return both(r, g, n, partial, counters, stream);
    }
  }
  const auto both = summed ? launch_both<T, N, false, true> : launch_both<T, N, false, false>;
  both(r, g, n, partial, counters, stream);
}

template <class T>
std::unique_ptr<Kernel> make_of(const KernelCall& call) {
  const ChannelRows r(call.in_shape(1));
  const auto grids = ColumnGrids::of(r, cuda_context(call).multiprocessors(), T{});
  const auto counters = grids.make_counters(cuda_context(call).device());
  const auto epsilon = static_cast<float>(call.attrs().real("epsilon"));
  const bool bits = call.attrs().has("bits");
  const bool summed = call.attrs().has("summands");
  return make_cuda_kernel([=](const Binding& b, cudaStream_t stream) {
    if (r.channels == 0) return;
    if (r.rows == 0) {
      const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(r.channels);
      for (const std::size_t i : {1, 2, 4, 5}) {
        check_cuda(cudaMemsetAsync(b.outputs[i], 0, bytes, stream), "zeroing a gradient");
      }
      return;
    }
    const auto side = [&](std::size_t x, std::size_t statistics, std::size_t out) {
      return GradSide<T>{b.in<T>(x),
                         b.in<float>(statistics),
                         b.in<float>(statistics + 1),
                         b.in<float>(statistics + 2),
                         b.out<T>(out),
                         b.out<float>(out + 1),
                         b.out<float>(out + 2)};
    };
    const ProjectionGradient<T> n{.dy = b.in<T>(0),
                                  .dy2 = summed ? b.in<T>(10) : nullptr,
                                  .y = bits ? nullptr : b.in<T>(5),
                                  .bits = bits ? b.in<std::uint8_t>(5) : nullptr,
                                  .sides = {side(1, 2, 0), side(6, 7, 3)},
                                  .epsilon = epsilon,
                                  .share = static_cast<float>(1.0 / static_cast<double>(r.rows))};
    const bool vectorised = r.channels % kVectorSize<T> == 0 &&
                            all_on_vector_boundaries(n.dy, n.dy2, n.y, n.sides[0].x, n.sides[1].x,
                                                     n.sides[0].dx, n.sides[1].dx);
    ensure(!bits || vectorised, "a bit mask requires values aligned to 16 bytes");
    auto* partial = reinterpret_cast<float*>(b.workspace);
    auto* counts = reinterpret_cast<unsigned*>(counters->data());
    if (vectorised) {
      launch<T, kVectorSize<T>>(r, grids.wide, n, partial, counts, stream);
    } else {
      launch<T, 1>(r, grids.narrow, n, partial, counts, stream);
    }
  });
}

std::unique_ptr<Kernel> make(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(1),
                             [&](auto zero) { return make_of<decltype(zero)>(call); });
}

std::size_t workspace_bytes(const KernelCall& call) {
  const ChannelRows r(call.in_shape(1));
  return cuda_dispatch_float(call.in_dtype(1), [&](auto zero) {
    return ColumnGrids::of(r, cuda_context(call).multiprocessors(), zero).workspace_bytes(r, 3);
  });
}

bool supports(const KernelCall& call) {
  return call.attrs().has("projection") && has_cuda_floats(call) && call.row_major() &&
         has_f32_channels(call, 2, 4) && has_f32_channels(call, 7, 9);
}

}  // namespace

void add_cuda_batch_norm_projection(KernelLibrary& library) {
  library.add(Op::BatchNormGrad, {.name = "cuda.batch_norm_projection_grad",
                                  .supports = supports,
                                  .make = make,
                                  .workspace_bytes = workspace_bytes});
}

}  // namespace lockstep
