// Batch norm over the channels of (…, C), with the residual addition and ReLU fused.
//
// Two passes over memory, so x is read twice: statistics (column_sums.cuh), then the result. The
// second pass goes backwards, so that it starts with what the first has left in the cache. It does
// not depend on the first: it also normalises by given statistics, and turns sums computed by a
// convolution into statistics. If max pooling follows, batch_norm_pool.cu does the second pass.
#include <array>
#include <limits>
#include <optional>

#include "lockstep/kernels/cuda/libraries/measure.h"
#include "lockstep/kernels/cuda/norm/batch_norm_pool.cuh"
#include "lockstep/kernels/cuda/norm/channel_statistics.h"

namespace lockstep {

void add_cuda_batch_norm_grad(KernelLibrary& library);  // batch_norm_grad.cu

namespace {

// Mean and biased variance of each channel. The channel's first element is subtracted from all, so
// that a mean far from zero does not cost precision. Four 16-byte loads are in flight.
template <class T, int N>
__global__ void __launch_bounds__(kColumnThreads, kBlocksInPlace)
    batch_statistics(const ChannelRows r, const ColumnGrid g, const T* x, float* partial,
                     unsigned* counters, const FinishStatistics finish) {
  constexpr int kAtOnce = 4;
  __shared__ ColumnMemory<> memory;
  const ColumnPlace p = column_place<N>(r, g);
  float sums[2][N] = {};
  if (p.active) {
    float shift[N];
    load_floats<T, N>(x + p.first + p.side, shift);
    const auto take = [&](const Raw<T, N>& raw) {
      float values[N];
      unpack<T, N>(raw, values);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float distance = values[i] - shift[i];
        sums[0][i] += distance;
        sums[1][i] = fmaf(distance, distance, sums[1][i]);
      }
    };
    const std::int64_t stride = p.step * r.channels;
    const T* at = x + p.row * r.channels + p.first + p.side;
    std::int64_t row = p.row;
    for (; row + (kAtOnce - 1) * p.step < r.rows; row += kAtOnce * p.step) {
      Raw<T, N> raws[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) raws[u] = load_raw<T, N>(at + u * stride);
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) take(raws[u]);
      at += kAtOnce * stride;
    }
    for (; row < r.rows; row += p.step, at += stride) take(load_raw<T, N>(at));
  }
  finish_columns<N>(r, g, p, sums, partial, counters, memory,
                    [&](int channel, const double(&totals)[2]) {
                      const float shift = as_float(x[channel]);
                      finish.write(channel, finish.statistics(totals[0], totals[1], shift));
                    });
}

// y = (x - mean) · scale + beta (+ residual, or the same of another x), and ReLU; from the last row
// to the first.
template <class T, int N, Added kAdded>
__global__ void __launch_bounds__(kColumnThreads, kPassMinBlocks)
    normalise(const ChannelRows r, const ColumnGrid g, const Normalisation<T> n) {
  alignas(16) __shared__ TileChannels means, scales, betas, other_means, other_scales;
  const ColumnPlace p = pass_place<N>(r, g);
  for (int i = static_cast<int>(threadIdx.x); i < p.channels; i += kColumnThreads) {
    const int channel = p.first + i;
    const Statistics s = statistics_of(n.own, channel, p.block == 0);
    means[i] = s.mean;
    scales[i] = norm_scale(n.own.gamma[channel], reciprocal_deviation(s.variance, n.epsilon));
    betas[i] = n.own.beta[channel];
    if constexpr (kAdded == Added::Projection) {
      const Statistics o = statistics_of(n.projection, channel, p.block == 0);
      other_means[i] = o.mean;
      other_scales[i] =
          norm_scale(n.projection.gamma[channel], reciprocal_deviation(o.variance, n.epsilon));
      betas[i] += n.projection.beta[channel];
    }
  }
  __syncthreads();
  if (!p.active) return;
  float mean[N];
  float scale[N];
  float beta[N];
  float other_mean[N];
  float other_scale[N];
  load_shared<N>(means + p.side, mean);
  load_shared<N>(scales + p.side, scale);
  load_shared<N>(betas + p.side, beta);
  if constexpr (kAdded == Added::Projection) {
    load_shared<N>(other_means + p.side, other_mean);
    load_shared<N>(other_scales + p.side, other_scale);
  }
  const auto put = [&](std::int64_t at, const Raw<T, N>& raw, const Raw<T, N>& added) {
    float values[N];
    float others[N];
    unpack<T, N>(raw, values);
    if constexpr (kAdded != Added::None) unpack<T, N>(added, others);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float value = normalised(values[i], mean[i], scale[i], beta[i]);
      if constexpr (kAdded == Added::Residual) value = __fadd_rn(value, others[i]);
      if constexpr (kAdded == Added::Projection) {
        value = normalised(others[i], other_mean[i], other_scale[i], value);
      }
      values[i] = value < n.floor ? n.floor : value;  // NaN propagates
    }
    store_floats<T, N>(n.y + at, values);
    if constexpr (kAdded != Added::None && N == 8) {
      if (n.bits == nullptr) return;
      unsigned bits = 0;
#pragma unroll
      for (int i = 0; i < N; ++i) bits |= values[i] > kStoredAsZero<T> ? 1U << i : 0U;
      n.bits[at / N] = static_cast<std::uint8_t>(bits);
    }
  };
  const T* beside = kAdded == Added::Projection ? n.projection.x : n.residual;
  const std::int64_t stride = p.step * r.channels;
  const std::int64_t at = (r.rows - 1 - p.row) * r.channels + p.first + p.side;
  Raw<T, N> raws[kPassRows];
  Raw<T, N> added[kPassRows];
#pragma unroll
  for (int u = 0; u < kPassRows; ++u) {
    if (p.row + u * p.step >= r.rows) continue;
    raws[u] = load_raw<T, N>(n.own.x + at - u * stride);
    if constexpr (kAdded != Added::None) added[u] = load_raw<T, N>(beside + at - u * stride);
  }
#pragma unroll
  for (int u = 0; u < kPassRows; ++u) {
    if (p.row + u * p.step < r.rows) put(at - u * stride, raws[u], added[u]);
  }
}

template <class T, int N>
void launch_statistics(const ChannelRows& r, const ColumnGrid& g, const T* x, float* partial,
                       unsigned* counters, const FinishStatistics& finish, cudaStream_t stream) {
  batch_statistics<T, N>
      <<<g.all_blocks(), kColumnThreads, 0, stream>>>(r, g, x, partial, counters, finish);
  check_launch("batch_statistics");
}

template <class T, int N>
void launch_normalise(const ChannelRows& r, const ColumnGrid& g, const Normalisation<T>& n,
                      cudaStream_t stream) {
  auto* kernel = normalise<T, N, Added::None>;
  if (n.added() == Added::Residual) kernel = normalise<T, N, Added::Residual>;
  if (n.added() == Added::Projection) kernel = normalise<T, N, Added::Projection>;
  kernel<<<pass_blocks(r, g), kColumnThreads, 0, stream>>>(r, g, n);
  check_launch("normalise");
}

template <class T>
bool in_vectors(const ChannelRows& r, const Normalisation<T>& n) {
  return r.channels % kVectorSize<T> == 0 &&
         all_on_vector_boundaries(n.own.x, n.projection.x, n.residual, n.y);
}

float floor_of(const KernelCall& call) {
  return call.attrs().has("activation") ? 0.0F : -std::numeric_limits<float>::infinity();
}

// Which optional inputs and outputs a batch norm has (ops/norm.h).
struct NormForm {
  bool projection = false;
  bool residual = false;
  bool bits = false;
  bool pool = false;
  std::size_t sums = 0;            // the input's index, if they are given
  std::size_t projected_sums = 0;  // the same for the projection

  explicit NormForm(const KernelCall& call) {
    const auto has = [&](const char* name) { return call.attrs().has(name); };
    std::size_t end = call.in_count();
    const auto take = [&](const char* name) { return has(name) ? end -= 2 : std::size_t{0}; };
    projected_sums = take("projected_statistics");
    sums = take("statistics");
    projection = has("projection");
    residual = end > 3 && !projection;
    bits = has("bits");
    pool = has("pool");
  }
};

template <class T>
std::unique_ptr<Kernel> make_batch_norm_of(const KernelCall& call) {
  const ChannelRows r(call.in_shape(0));
  const auto grids = ColumnGrids::of(r, cuda_context(call).multiprocessors(), T{});
  const auto counters = grids.make_counters(cuda_context(call).device());
  const auto epsilon = static_cast<float>(call.attrs().real("epsilon"));
  const float floor = floor_of(call);
  const NormForm form(call);
  std::optional<PoolShape> pool;
  if (form.pool) pool.emplace(call.in_shape(0), call.out_shape(0), call.attrs());
  return make_cuda_kernel([=](const Binding& b, cudaStream_t stream) {
    if (r.channels == 0) return;
    const std::size_t last = form.projection ? 4 : 2;  // the last output with statistics
    if (r.rows == 0) {
      const std::size_t bytes = sizeof(float) * static_cast<std::size_t>(r.channels);
      for (std::size_t i = 1; i <= last; ++i) {
        check_cuda(cudaMemsetAsync(b.outputs[i], 0, bytes, stream), "zeroing statistics");
      }
      return;
    }
    const auto side = [&](std::size_t in, std::size_t out, std::size_t sums) {
      const FinishStatistics finish{b.out<float>(out), b.out<float>(out + 1),
                                    1.0 / static_cast<double>(r.rows)};
      GivenSums given{nullptr, nullptr, finish};
      if (sums > 0) given = {b.in<float>(sums), b.in<float>(sums + 1), finish};
      return NormSide<T>{b.in<T>(in), b.in<float>(in + 1), b.in<float>(in + 2),
                         finish.mean, finish.variance,     given};
    };
    Normalisation<T> n{.own = side(0, 1, form.sums),
                       .projection = {},
                       .residual = form.residual ? b.in<T>(3) : nullptr,
                       .y = b.out<T>(0),
                       .bits = form.bits ? b.out<std::uint8_t>(last + 1) : nullptr,
                       .epsilon = epsilon,
                       .floor = floor};
    if (form.projection) n.projection = side(3, 3, form.projected_sums);
    const bool vectorised = in_vectors(r, n);
    ensure(!form.bits || vectorised, "a bit mask requires values aligned to 16 bytes");
    auto* partial = reinterpret_cast<float*>(b.workspace);
    auto* counts = reinterpret_cast<unsigned*>(counters->data());
    for (const NormSide<T>& s : std::array{n.own, n.projection}) {
      if (s.x == nullptr || s.given.sums != nullptr) continue;
      const FinishStatistics& finish = s.given.finish;
      if (vectorised) {
        launch_statistics<T, kVectorSize<T>>(r, grids.wide, s.x, partial, counts, finish, stream);
      } else {
        launch_statistics<T, 1>(r, grids.narrow, s.x, partial, counts, finish, stream);
      }
    }
    if (pool) {
      normalise_and_pool(*pool, grids.wide, n, {b.out<std::uint8_t>(3), b.out<T>(4)}, stream);
    } else if (vectorised) {
      launch_normalise<T, kVectorSize<T>>(r, grids.wide, n, stream);
    } else {
      launch_normalise<T, 1>(r, grids.narrow, n, stream);
    }
  });
}

template <class T>
std::unique_ptr<Kernel> make_inference_of(const KernelCall& call) {
  const ChannelRows r(call.in_shape(0));
  const auto grids = ColumnGrids::of(r, cuda_context(call).multiprocessors(), T{});
  const auto epsilon = static_cast<float>(call.attrs().real("epsilon"));
  const float floor = floor_of(call);
  const bool residual = call.in_count() > 5;
  return make_cuda_kernel([=](const Binding& b, cudaStream_t stream) {
    if (r.rows == 0 || r.channels == 0) return;
    const Normalisation<T> n{
        .own = {b.in<T>(0), b.in<float>(1), b.in<float>(2), b.in<float>(3), b.in<float>(4), {}},
        .projection = {},
        .residual = residual ? b.in<T>(5) : nullptr,
        .y = b.out<T>(0),
        .bits = nullptr,
        .epsilon = epsilon,
        .floor = floor};
    if (in_vectors(r, n)) {
      launch_normalise<T, kVectorSize<T>>(r, grids.wide, n, stream);
    } else {
      launch_normalise<T, 1>(r, grids.narrow, n, stream);
    }
  });
}

std::unique_ptr<Kernel> make_batch_norm(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(0),
                             [&](auto zero) { return make_batch_norm_of<decltype(zero)>(call); });
}

std::unique_ptr<Kernel> make_inference(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(0),
                             [&](auto zero) { return make_inference_of<decltype(zero)>(call); });
}

std::size_t workspace_bytes(const KernelCall& call) {
  const ChannelRows r(call.in_shape(0));
  return cuda_dispatch_float(call.in_dtype(0), [&](auto zero) {
    return ColumnGrids::of(r, cuda_context(call).multiprocessors(), zero).workspace_bytes(r);
  });
}

bool supports_batch_norm(const KernelCall& call) {
  return has_cuda_floats(call) && call.row_major() && has_f32_channels(call, 1, 2) &&
         (!call.attrs().has("projection") || has_f32_channels(call, 4, 5)) &&
         (!call.attrs().has("pool") || pools_with_norm(call.input(0).type, call.attrs()));
}

bool supports_inference(const KernelCall& call) {
  return has_cuda_floats(call) && call.row_major() && has_f32_channels(call, 1, 4);
}

bool fuses_relu(const KernelCall&, std::string_view activation) {
  return activation == "relu";
}

bool offers(const KernelCall& call, std::string_view extra) {
  return extra == "projection" || (extra == "bits" && packs_bits(call.input(0).type));
}

template <class T>
std::optional<float> measure_statistics_of(CudaContext& context, DType dtype, const Shape& shape) {
  const ChannelRows r(shape);
  if (r.channels % kVectorSize<T> != 0) return {};
  const auto grids = ColumnGrids::of(r, context.multiprocessors(), T{});
  const auto counters = grids.make_counters(context.device());
  const Scratch x(sizeof(T) * static_cast<std::size_t>(shape.elements()));
  const Scratch partial(grids.workspace_bytes(r));
  const Scratch results(2 * sizeof(float) * static_cast<std::size_t>(r.channels));
  if (x.data() == nullptr || partial.data() == nullptr || results.data() == nullptr) return {};
  Stopwatch stopwatch;
  fill_random(x.data(), dtype, shape.elements(), 1, stopwatch.stream());
  auto* mean = reinterpret_cast<float*>(results.data());
  const FinishStatistics finish{mean, mean + r.channels, 1.0 / static_cast<double>(r.rows)};
  const auto run = [&](cudaStream_t stream, std::size_t) {
    launch_statistics<T, kVectorSize<T>>(r, grids.wide, reinterpret_cast<const T*>(x.data()),
                                         reinterpret_cast<float*>(partial.data()),
                                         reinterpret_cast<unsigned*>(counters->data()), finish,
                                         stream);
    return true;
  };
  return stopwatch.median(run, std::numeric_limits<float>::infinity());
}

}  // namespace

std::optional<float> measure_statistics(CudaContext& context, DType dtype, const Shape& shape) {
  return cuda_dispatch_float(dtype, [&](auto zero) {
    return measure_statistics_of<decltype(zero)>(context, dtype, shape);
  });
}

void add_cuda_norm(KernelLibrary& library) {
  library.add(Op::BatchNorm, {.name = "cuda.batch_norm",
                              .supports = supports_batch_norm,
                              .make = make_batch_norm,
                              .workspace_bytes = workspace_bytes,
                              .fuses_activation = fuses_relu,
                              .offers = offers});
  library.add(Op::BatchNormInference, {.name = "cuda.batch_norm_inference",
                                       .supports = supports_inference,
                                       .make = make_inference,
                                       .fuses_activation = fuses_relu});
  add_cuda_batch_norm_grad(library);
}

}  // namespace lockstep
