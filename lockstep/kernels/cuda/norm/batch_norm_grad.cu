// The gradient of batch norm. Let x̂ be the normalised input and dz = dy where a fused ReLU was
// active, otherwise 0. Over R rows:
// dbeta = Σ dz, dgamma = Σ dz x̂, dx = gamma · rstd · (dz - dbeta / R - x̂ dgamma / R).
//
// Two passes over memory: the sums (column_sums.cuh), then dx from the last row to the first, which
// starts with what the first pass has left in the cache. If a residual was added, its gradient is
// dz: the first pass writes it, and the second reads it instead of dy and the mask. The mask is the
// sign of y, which may be given as bits; if the node has beta instead, the mask is recomputed from
// x, which both passes read anyway. With a residual, dy may be given as two summands, which the
// first pass adds.
#include "lockstep/kernels/cuda/norm/batch_norm_grad.cuh"

namespace lockstep {

void add_cuda_batch_norm_pool_grad(KernelLibrary& library);   // batch_norm_pool.cu
void add_cuda_batch_norm_projection(KernelLibrary& library);  // batch_norm_projection.cu

namespace {

// dx, from dbeta and dgamma; dy is already dz if the residual's gradient was written.
template <class T, int N, Mask kMask>
__global__ void __launch_bounds__(kColumnThreads, kPassMinBlocks)
    norm_gradient(const ChannelRows r, const ColumnGrid g, const NormGradient<T> n,
                  const float share) {
  alignas(16) __shared__ TileChannels offsets, slopes;
  const ColumnPlace p = pass_place<N>(r, g);
  for (int i = static_cast<int>(threadIdx.x); i < p.channels; i += kColumnThreads) {
    const int channel = p.first + i;
    const float rstd = reciprocal_deviation(n.variance[channel], n.epsilon);
    offsets[i] = n.dbeta[channel] * share;
    slopes[i] = n.dgamma[channel] * share * rstd;
  }
  const GradChannels<N, kMask> c = load_channels<N, kMask>(p, n);  // waits for all threads
  if (!p.active) return;
  float offset[N];
  float slope[N];
  load_shared<N>(offsets + p.side, offset);
  load_shared<N>(slopes + p.side, slope);
  const auto load = [&](std::int64_t at) {
    GradVectors<T, N, kMask> vectors;
    vectors.dy = load_raw<T, N>(n.dy + at);
    vectors.x = load_raw<T, N>(n.x + at);
    if constexpr (kMask == Mask::FromResult) vectors.y = load_raw<T, N>(n.y + at);
    return vectors;
  };
  const auto put = [&](std::int64_t at, const GradVectors<T, N, kMask>& vectors) {
    float dz[N];
    float x[N];
    float y[N];
    unpack<T, N>(vectors.dy, dz);
    unpack<T, N>(vectors.x, x);
    if constexpr (kMask == Mask::FromResult) unpack<T, N>(vectors.y, y);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float centered = __fsub_rn(x[i], c.mean[i]);
      const float through = c.template passed<T>(i, centered, y[i], vectors.bits) ? dz[i] : 0.0F;
      x[i] = c.scale[i] * fmaf(-centered, slope[i], through - offset[i]);
    }
    store_floats<T, N>(n.dx + at, x);
  };
  const std::int64_t stride = p.step * r.channels;
  const std::int64_t at = (r.rows - 1 - p.row) * r.channels + p.first + p.side;
  GradVectors<T, N, kMask> vectors[kPassRows];
#pragma unroll
  for (int u = 0; u < kPassRows; ++u) {
    if (p.row + u * p.step < r.rows) vectors[u] = load(at - u * stride);
  }
#pragma unroll
  for (int u = 0; u < kPassRows; ++u) {
    if (p.row + u * p.step < r.rows) put(at - u * stride, vectors[u]);
  }
}

template <class T, int N, Mask kMask, bool kResidual, bool kSummed = false>
void launch_both(const ChannelRows& r, const ColumnGrid& g, NormGradient<T> n, float* partial,
                 unsigned* counters, cudaStream_t stream) {
  norm_gradient_sums<T, N, kMask, kResidual, kSummed>
      <<<g.all_blocks(), kColumnThreads, 0, stream>>>(r, g, n, partial, counters);
  check_launch("norm_gradient_sums");
  constexpr Mask kLeft = kResidual ? Mask::None : kMask;
  if constexpr (kResidual) n.dy = n.dresidual;
  const auto share = static_cast<float>(1.0 / static_cast<double>(r.rows));
  norm_gradient<T, N, kLeft><<<pass_blocks(r, g), kColumnThreads, 0, stream>>>(r, g, n, share);
  check_launch("norm_gradient");
}

template <class T, int N>
void launch(const ChannelRows& r, const ColumnGrid& g, const NormGradient<T>& n, float* partial,
            unsigned* counters, cudaStream_t stream) {
  if constexpr (N == 8) {
    if (n.bits != nullptr && n.dy2 == nullptr) {
      return launch_both<T, N, Mask::FromBits, true>(r, g, n, partial, counters, stream);
    }
    if (n.bits != nullptr) {
      return launch_both<T, N, Mask::FromBits, true, true>(r, g, n, partial, counters, stream);
    }
  }
  if (n.beta != nullptr) {
    launch_both<T, N, Mask::FromInput, false>(r, g, n, partial, counters, stream);
  } else if (n.y == nullptr) {
    launch_both<T, N, Mask::None, false>(r, g, n, partial, counters, stream);
  } else if (n.dresidual == nullptr) {
    launch_both<T, N, Mask::FromResult, false>(r, g, n, partial, counters, stream);
  } else if (n.dy2 == nullptr) {
    launch_both<T, N, Mask::FromResult, true>(r, g, n, partial, counters, stream);
  } else {
    launch_both<T, N, Mask::FromResult, true, true>(r, g, n, partial, counters, stream);
  }
}

// Without a mask the residual's gradient is dy.
template <class T>
void copy_to_residual(const ChannelRows& r, const NormGradient<T>& n, cudaStream_t stream) {
  if (n.dresidual == n.dy) return;
  const auto elements = static_cast<std::size_t>(r.rows) * static_cast<std::size_t>(r.channels);
  check_cuda(
      cudaMemcpyAsync(n.dresidual, n.dy, sizeof(T) * elements, cudaMemcpyDeviceToDevice, stream),
      "copying the gradient of a residual");
}

void zero_channels(const ChannelRows& r, float* values, cudaStream_t stream) {
  const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(r.channels);
  check_cuda(cudaMemsetAsync(values, 0, bytes, stream), "zeroing a gradient");
}

template <class T>
std::unique_ptr<Kernel> make_grad_of(const KernelCall& call) {
  const ChannelRows r(call.in_shape(1));
  const auto grids = ColumnGrids::of(r, cuda_context(call).multiprocessors(), T{});
  const auto counters = grids.make_counters(cuda_context(call).device());
  const auto epsilon = static_cast<float>(call.attrs().real("epsilon"));
  const bool relu = call.attrs().has("activation");
  const bool residual = call.node.outputs.size() > 3;
  const bool has_beta = call.attrs().has("beta");
  const bool has_bits = call.attrs().has("bits");
  const bool has_y = relu && !has_beta && !has_bits;
  const bool summed = call.attrs().has("summands");
  return make_cuda_kernel([=](const Binding& b, cudaStream_t stream) {
    if (r.channels == 0) return;
    const NormGradient<T> n{.dy = b.in<T>(0),
                            .dy2 = summed ? b.in<T>(6) : nullptr,
                            .x = b.in<T>(1),
                            .y = has_y ? b.in<T>(5) : nullptr,
                            .bits = has_bits ? b.in<std::uint8_t>(5) : nullptr,
                            .mean = b.in<float>(2),
                            .variance = b.in<float>(3),
                            .gamma = b.in<float>(4),
                            .beta = has_beta ? b.in<float>(5) : nullptr,
                            .dx = b.out<T>(0),
                            .dresidual = residual ? b.out<T>(3) : nullptr,
                            .dgamma = b.out<float>(1),
                            .dbeta = b.out<float>(2),
                            .epsilon = epsilon};
    if (r.rows == 0) {
      zero_channels(r, n.dgamma, stream);
      zero_channels(r, n.dbeta, stream);
      return;
    }
    auto* partial = reinterpret_cast<float*>(b.workspace);
    auto* counts = reinterpret_cast<unsigned*>(counters->data());
    if (residual && !relu) copy_to_residual(r, n, stream);
    const bool in_vectors = r.channels % kVectorSize<T> == 0 &&
                            all_on_vector_boundaries(n.dy, n.dy2, n.x, n.y, n.dx, n.dresidual);
    ensure(!has_bits || in_vectors, "a bit mask requires values aligned to 16 bytes");
    if (in_vectors) {
      launch<T, kVectorSize<T>>(r, grids.wide, n, partial, counts, stream);
    } else {
      launch<T, 1>(r, grids.narrow, n, partial, counts, stream);
    }
  });
}

std::unique_ptr<Kernel> make_grad(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(1),
                             [&](auto zero) { return make_grad_of<decltype(zero)>(call); });
}

std::size_t workspace_bytes(const KernelCall& call) {
  const ChannelRows r(call.in_shape(1));
  return cuda_dispatch_float(call.in_dtype(1), [&](auto zero) {
    return ColumnGrids::of(r, cuda_context(call).multiprocessors(), zero).workspace_bytes(r);
  });
}

bool supports_grad(const KernelCall& call) {
  const bool beta_fits = !call.attrs().has("beta") || has_f32_channels(call, 5, 5);
  const bool summed = call.attrs().has("summands");
  const bool masked = call.attrs().has("activation") && call.node.outputs.size() > 3;
  return has_cuda_floats(call) && call.row_major() && has_f32_channels(call, 2, 4) && beta_fits &&
         (!summed || masked) && !call.attrs().has("projection") && !call.attrs().has("pool");
}

}  // namespace

void add_cuda_batch_norm_grad(KernelLibrary& library) {
  add_cuda_batch_norm_pool_grad(library);
  add_cuda_batch_norm_projection(library);
  library.add(Op::BatchNormGrad, {.name = "cuda.batch_norm_grad",
                                  .supports = supports_grad,
                                  .make = make_grad,
                                  .workspace_bytes = workspace_bytes,
                                  .offers = [](const KernelCall&, std::string_view extra) {
                                    return extra == "beta" || extra == "summands";
                                  }});
}

}  // namespace lockstep
