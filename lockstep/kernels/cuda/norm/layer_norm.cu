// Layer norm over the last axis. A team of threads (row_team.cuh) processes a row in three passes:
// the mean, the squared differences from it, and the result. Only the first pass reads memory, the
// others hit the cache. The gradient of x is computed row by row in the same way; those of gamma
// and beta are sums over the rows for each channel (column_sums.cuh).
#include "lockstep/kernels/cuda/primitives/column_sums.cuh"
#include "lockstep/kernels/cuda/primitives/row_team.cuh"

namespace lockstep {
namespace {

// Numbers per channel or row, in f32 or in the type of the rows, as in the graph.
template <class T>
class Numbers {
 public:
  Numbers(const void* data, bool in_f32) : data_(const_cast<void*>(data)), in_f32_(in_f32) {}

  __device__ float at(std::int64_t i) const {
    return in_f32_ ? static_cast<const float*>(data_)[i]
                   : as_float(static_cast<const T*>(data_)[i]);
  }
  __device__ void put(std::int64_t i, float value) const {
    if (in_f32_) {
      static_cast<float*>(data_)[i] = value;
    } else {
      static_cast<T*>(data_)[i] = rounded<T>(value);
    }
  }

 private:
  void* data_;
  bool in_f32_;
};

template <class T>
struct LayerNorm {
  const T* x;
  T* y;
  Numbers<T> gamma, beta;
  Numbers<T> mean, rstd;  // of each row
  float epsilon;
};

template <class T, class Team, int N>
__global__ void __launch_bounds__(kTeamBlock)
    layer_norm(const ChannelRows r, const LayerNorm<T> n) {
  const float share = 1.0F / static_cast<float>(r.channels);
  for (std::int64_t row = Team::first_row(); row < r.rows; row += Team::row_step()) {
    const T* x = n.x + row * r.channels;
    T* y = n.y + row * r.channels;
    float sum = 0;
    for_each_vector<Team, N>(r.channels, [&](std::int64_t at) {
      float values[N];
      load_floats<T, N>(x + at, values);
#pragma unroll
      for (int i = 0; i < N; ++i) sum += values[i];
    });
    const float mean = Team::sum(sum) * share;
    float squares = 0;
    for_each_vector<Team, N>(r.channels, [&](std::int64_t at) {
      float values[N];
      load_floats<T, N>(x + at, values);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float distance = values[i] - mean;
        squares = fmaf(distance, distance, squares);
      }
    });
    const float rstd = __frcp_rn(__fsqrt_rn(Team::sum(squares) * share + n.epsilon));
    for_each_vector<Team, N>(r.channels, [&](std::int64_t at) {
      float values[N];
      load_floats<T, N>(x + at, values);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        values[i] = (values[i] - mean) * rstd * n.gamma.at(at + i) + n.beta.at(at + i);
      }
      store_floats<T, N>(y + at, values);
    });
    if (Team::thread() == 0) {
      n.mean.put(row, mean);
      n.rstd.put(row, rstd);
    }
  }
}

template <class T>
struct LayerNormGradient {
  const T* dy;
  const T* x;
  T* dx;
  Numbers<T> mean, rstd;
  Numbers<T> gamma, dgamma, dbeta;
};

// With x̂ the normalised row, g = dy · gamma and means over the row:
// dx = rstd · (g - mean(g) - x̂ mean(g x̂)).
template <class T, class Team, int N>
__global__ void __launch_bounds__(kTeamBlock)
    layer_norm_rows(const ChannelRows r, const LayerNormGradient<T> n) {
  const float share = 1.0F / static_cast<float>(r.channels);
  for (std::int64_t row = Team::first_row(); row < r.rows; row += Team::row_step()) {
    const float mean = n.mean.at(row);
    const float rstd = n.rstd.at(row);
    // Calls f(index, g, x̂) for each element of a vector.
    const auto for_each_element = [&](std::int64_t at, auto&& f) {
      float dy[N];
      float x[N];
      load_floats<T, N>(n.dy + row * r.channels + at, dy);
      load_floats<T, N>(n.x + row * r.channels + at, x);
#pragma unroll
      for (int i = 0; i < N; ++i) f(i, dy[i] * n.gamma.at(at + i), (x[i] - mean) * rstd);
    };
    float sum = 0;
    float along = 0;
    for_each_vector<Team, N>(r.channels, [&](std::int64_t at) {
      for_each_element(at, [&](int, float g, float normalised) {
        sum += g;
        along = fmaf(g, normalised, along);
      });
    });
    const float offset = Team::sum(sum) * share;
    const float slope = Team::sum(along) * share;
    for_each_vector<Team, N>(r.channels, [&](std::int64_t at) {
      float dx[N];
      for_each_element(at, [&](int i, float g, float normalised) {
        dx[i] = rstd * (g - offset - normalised * slope);
      });
      store_floats<T, N>(n.dx + row * r.channels + at, dx);
    });
  }
}

// dgamma = Σ dy x̂, dbeta = Σ dy over the rows.
template <class T, int N>
__global__ void __launch_bounds__(kColumnThreads, kBlocksInPlace)
    layer_norm_channels(const ChannelRows r, const ColumnGrid g, const LayerNormGradient<T> n,
                        float* partial, unsigned* counters) {
  __shared__ ColumnMemory<> memory;
  const ColumnPlace p = column_place<N>(r, g);
  float sums[2][N] = {};
  if (p.active) {
#pragma unroll 2
    for (std::int64_t row = p.row; row < r.rows; row += p.step) {
      const std::int64_t at = row * r.channels + p.first + p.side;
      const float mean = n.mean.at(row);
      const float rstd = n.rstd.at(row);
      float dy[N];
      float x[N];
      load_floats<T, N>(n.dy + at, dy);
      load_floats<T, N>(n.x + at, x);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        sums[0][i] += dy[i];
        sums[1][i] = fmaf(dy[i], (x[i] - mean) * rstd, sums[1][i]);
      }
    }
  }
  finish_columns<N>(r, g, p, sums, partial, counters, memory,
                    [&](int channel, const double(&totals)[2]) {
                      n.dbeta.put(channel, static_cast<float>(totals[0]));
                      n.dgamma.put(channel, static_cast<float>(totals[1]));
                    });
}

bool in_f32(const KernelCall& call, std::size_t input) {
  return call.in_dtype(input) == DType::F32;
}

bool in_f32_out(const KernelCall& call, std::size_t output) {
  return call.output(output).type.dtype == DType::F32;
}

template <class T>
std::unique_ptr<Kernel> make_layer_norm_of(const KernelCall& call) {
  const ChannelRows r(call.in_shape(0));
  const bool channels_f32 = in_f32(call, 1);
  const bool rows_f32 = in_f32_out(call, 1);
  const auto epsilon = static_cast<float>(call.attrs().real("epsilon"));
  return make_cuda_kernel([=](const Binding& b, cudaStream_t stream) {
    if (r.rows == 0) return;
    const LayerNorm<T> n{b.in<T>(0),
                         b.out<T>(0),
                         {b.inputs[1], channels_f32},
                         {b.inputs[2], channels_f32},
                         {b.outputs[1], rows_f32},
                         {b.outputs[2], rows_f32},
                         epsilon};
    with_team<T>(r.channels, all_on_vector_boundaries(n.x, n.y), [&](auto team, auto width) {
      using Team = decltype(team);
      layer_norm<T, Team, decltype(width)::value>
          <<<team_blocks<Team>(r.rows), kTeamBlock, 0, stream>>>(r, n);
    });
    check_launch("layer_norm");
  });
}

template <class T>
void launch_channels(const ChannelRows& r, const ColumnGrids& grids, bool aligned,
                     const LayerNormGradient<T>& n, float* partial, unsigned* counters,
                     cudaStream_t stream) {
  if (aligned && r.channels % kVectorSize<T> == 0) {
    layer_norm_channels<T, kVectorSize<T>><<<grids.wide.all_blocks(), kColumnThreads, 0, stream>>>(
        r, grids.wide, n, partial, counters);
  } else {
    layer_norm_channels<T, 1><<<grids.narrow.all_blocks(), kColumnThreads, 0, stream>>>(
        r, grids.narrow, n, partial, counters);
  }
  check_launch("layer_norm_channels");
}

template <class T>
std::unique_ptr<Kernel> make_layer_norm_grad_of(const KernelCall& call) {
  const ChannelRows r(call.in_shape(1));
  const auto grids = ColumnGrids::of(r, cuda_context(call).multiprocessors(), T{});
  const auto counters = grids.make_counters(cuda_context(call).device());
  const bool rows_f32 = in_f32(call, 2);
  const bool channels_f32 = in_f32(call, 4);
  return make_cuda_kernel([=](const Binding& b, cudaStream_t stream) {
    if (r.rows == 0) {
      const std::size_t bytes =
          (channels_f32 ? sizeof(float) : sizeof(T)) * static_cast<std::size_t>(r.channels);
      check_cuda(cudaMemsetAsync(b.outputs[1], 0, bytes, stream), "zeroing a gradient");
      check_cuda(cudaMemsetAsync(b.outputs[2], 0, bytes, stream), "zeroing a gradient");
      return;
    }
    const LayerNormGradient<T> n{b.in<T>(0),
                                 b.in<T>(1),
                                 b.out<T>(0),
                                 {b.inputs[2], rows_f32},
                                 {b.inputs[3], rows_f32},
                                 {b.inputs[4], channels_f32},
                                 {b.outputs[1], channels_f32},
                                 {b.outputs[2], channels_f32}};
    const bool aligned = all_on_vector_boundaries(n.dy, n.x, n.dx);
    launch_channels(r, grids, aligned, n, reinterpret_cast<float*>(b.workspace),
                    reinterpret_cast<unsigned*>(counters->data()), stream);
    with_team<T>(r.channels, aligned, [&](auto team, auto width) {
      using Team = decltype(team);
      layer_norm_rows<T, Team, decltype(width)::value>
          <<<team_blocks<Team>(r.rows), kTeamBlock, 0, stream>>>(r, n);
    });
    check_launch("layer_norm_rows");
  });
}

std::unique_ptr<Kernel> make_layer_norm(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(0),
                             [&](auto zero) { return make_layer_norm_of<decltype(zero)>(call); });
}

std::unique_ptr<Kernel> make_layer_norm_grad(const KernelCall& call) {
  return cuda_dispatch_float(
      call.in_dtype(1), [&](auto zero) { return make_layer_norm_grad_of<decltype(zero)>(call); });
}

std::size_t workspace_bytes(const KernelCall& call) {
  const ChannelRows r(call.in_shape(1));
  return cuda_dispatch_float(call.in_dtype(1), [&](auto zero) {
    return ColumnGrids::of(r, cuda_context(call).multiprocessors(), zero).workspace_bytes(r);
  });
}

// Whether the numbers per channel or row of x may have this type.
bool fits(DType numbers, DType x) {
  return numbers == DType::F32 || numbers == x;
}

bool supports_layer_norm(const KernelCall& call) {
  const DType x = call.in_dtype(0);
  return has_cuda_floats(call) && call.row_major() && fits(call.in_dtype(1), x) &&
         call.in_dtype(1) == call.in_dtype(2) && fits(call.output(1).type.dtype, x) &&
         call.output(1).type.dtype == call.output(2).type.dtype;
}

bool supports_layer_norm_grad(const KernelCall& call) {
  const DType x = call.in_dtype(1);
  return has_cuda_floats(call) && call.row_major() && fits(call.in_dtype(2), x) &&
         call.in_dtype(2) == call.in_dtype(3) && fits(call.in_dtype(4), x) &&
         call.output(1).type.dtype == call.in_dtype(4) &&
         call.output(2).type.dtype == call.in_dtype(4);
}

}  // namespace

void add_cuda_layer_norm(KernelLibrary& library) {
  library.add(
      Op::LayerNorm,
      {.name = "cuda.layer_norm", .supports = supports_layer_norm, .make = make_layer_norm});
  library.add(Op::LayerNormGrad, {.name = "cuda.layer_norm_grad",
                                  .supports = supports_layer_norm_grad,
                                  .make = make_layer_norm_grad,
                                  .workspace_bytes = workspace_bytes});
}

}  // namespace lockstep
