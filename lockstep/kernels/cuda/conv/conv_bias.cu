#include "lockstep/kernels/cuda/conv/conv_bias.h"

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/elementwise/activations.cuh"
#include "lockstep/kernels/cuda/primitives/elements.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 256;
constexpr int kFlight = 4;  // loads that a thread has in flight

bool is_wide(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % kVectorBytes == 0;
}

__device__ float activated(CudaActivation kind, float x, float alpha) {
  switch (kind) {
    case CudaActivation::Linear:
      return x;
    case CudaActivation::Relu:
      return Relu().value(x);
    case CudaActivation::Relu6:
      return Relu6().value(x);
    case CudaActivation::LeakyRelu:
      return x < 0.0f ? x * alpha : x;
    case CudaActivation::Gelu:
      return Gelu<DeviceMath>().value(x);
    case CudaActivation::GeluTanh:
      return GeluTanh<DeviceMath>().value(x);
    case CudaActivation::Silu:
      return Silu<DeviceMath>().value(x);
    case CudaActivation::Tanh:
      return Tanh<DeviceMath>().value(x);
    case CudaActivation::Sigmoid:
      return Sigmoid<DeviceMath>().value(x);
    case CudaActivation::Softplus:
      return Softplus<DeviceMath>().value(x);
  }
  return x;
}

// Linear and ReLU get separate kernels: the formulas of all kinds together need more registers.
enum class Formula { Linear, Relu, Any };

template <Formula kFormula>
__device__ float applied(CudaActivation kind, float x, float alpha) {
  if constexpr (kFormula == Formula::Linear) return x;
  if constexpr (kFormula == Formula::Relu) return Relu().value(x);
  return activated(kind, x, alpha);
}

// Adds kCount consecutive elements of the bias, in vector loads of at most 16 bytes.
template <int kCount, class B>
__device__ void add_bias(const B* bias, float* values) {
  constexpr int kLoad = kCount < kCommonVectorSize<B> ? kCount : kCommonVectorSize<B>;
#pragma unroll
  for (int i = 0; i < kCount; i += kLoad) {
    const auto piece = load_vector<B, kLoad>(bias + i);
#pragma unroll
    for (int j = 0; j < kLoad; ++j) values[i + j] += widen(piece.items[j]);
  }
}

// y = f(y + bias) in vectors of kCount elements, `columns` vectors per row. A thread block covers
// kFlight contiguous ranges of kThreads vectors each, so a thread has kFlight vector loads in
// flight; it finds the column of its first vector by a division, those of the others by increments.
template <class T, class B, int kCount, Formula kFormula>
__global__ void __launch_bounds__(kThreads)
    bias_activation_kernel(T* y, const B* bias, std::int64_t vectors, std::int64_t columns,
                           CudaActivation kind, float alpha) {
  using Elements = Vector<T, kCount>;
  auto* data = reinterpret_cast<Elements*>(y);
  const std::int64_t first =
      static_cast<std::int64_t>(blockIdx.x) * (kThreads * kFlight) + threadIdx.x;
  Elements loaded[kFlight];
#pragma unroll
  for (int f = 0; f < kFlight; ++f) {
    const std::int64_t i = first + f * kThreads;
    if (i < vectors) loaded[f] = data[i];
  }
  std::int64_t column = bias == nullptr ? 0 : first % columns;
  const std::int64_t step = bias == nullptr ? 0 : kThreads % columns;
#pragma unroll
  for (int f = 0; f < kFlight; ++f) {
    const std::int64_t i = first + f * kThreads;
    if (i >= vectors) break;
    float values[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) values[j] = widen(loaded[f].items[j]);
    if (bias != nullptr) add_bias<kCount>(bias + column * kCount, values);
    Elements result;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      result.items[j] = narrow<T>(applied<kFormula>(kind, values[j], alpha));
    }
    data[i] = result;
    column += step;
    if (column >= columns) column -= columns;
  }
}

template <class T, class B, int kCount>
void launch_bias_activation(const BiasActivation& epilogue, T* y, const B* bias,
                            cudaStream_t stream) {
  const std::int64_t columns = epilogue.columns / kCount;
  const std::int64_t vectors = epilogue.rows * columns;
  const unsigned blocks =
      static_cast<unsigned>((vectors + kFlight * kThreads - 1) / (kFlight * kThreads));
  const auto launch = [&](auto kernel) {
    kernel<<<blocks, kThreads, 0, stream>>>(y, bias, vectors, columns, epilogue.activation,
                                            epilogue.alpha);
  };
  switch (epilogue.activation) {
    case CudaActivation::Linear:
      return launch(bias_activation_kernel<T, B, kCount, Formula::Linear>);
    case CudaActivation::Relu:
      return launch(bias_activation_kernel<T, B, kCount, Formula::Relu>);
    default:
      return launch(bias_activation_kernel<T, B, kCount, Formula::Any>);
  }
}

template <class T, class B>
void run_bias_activation(const BiasActivation& epilogue, T* y, const B* bias, cudaStream_t stream) {
  if (epilogue.columns % kCommonVectorSize<T> == 0 && is_wide(y) && is_wide(bias)) {
    launch_bias_activation<T, B, kCommonVectorSize<T>>(epilogue, y, bias, stream);
  } else {
    launch_bias_activation<T, B, 1>(epilogue, y, bias, stream);
  }
}

// Column sums of a chunk of rows. A block covers lanes · kCount columns. Its threads form groups of
// `lanes`; each group takes every groups-th row of the chunk, and the groups are then summed
// pairwise: the order depends only on the shape.
template <class T, int kCount>
__global__ void __launch_bounds__(kThreads)
    sum_rows_kernel(const T* x, float* partials, std::int64_t rows, std::int64_t columns, int lanes,
                    std::int64_t rows_in_chunk) {
  __shared__ float shared[kCount][kThreads];
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int group = static_cast<int>(threadIdx.x) / lanes;
  const int groups = kThreads / lanes;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * lanes + lane) * kCount;
  const std::int64_t begin = blockIdx.x * rows_in_chunk;
  const std::int64_t end = begin + rows_in_chunk < rows ? begin + rows_in_chunk : rows;
  float sums[kCount] = {};
  if (column < columns) {
#pragma unroll 4
    for (std::int64_t row = begin + group; row < end; row += groups) {
      const auto piece = load_vector<T, kCount>(x + row * columns + column);
#pragma unroll
      for (int j = 0; j < kCount; ++j) sums[j] += widen(piece.items[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j) shared[j][threadIdx.x] = sums[j];
  for (int half = groups / 2; half > 0; half /= 2) {
    __syncthreads();
    if (group < half) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) {
        shared[j][threadIdx.x] += shared[j][threadIdx.x + half * lanes];
      }
    }
  }
  // No barrier: a thread of the first group reads what it wrote itself.
  if (group == 0 && column < columns) {
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      partials[blockIdx.x * columns + column + j] = shared[j][threadIdx.x];
    }
  }
}

constexpr int kSumColumns = 32;  // per block of the second stage
constexpr int kSumGroups = 8;

// result = the sum over all chunks: kSumGroups threads per column, each over every kSumGroups-th
// chunk.
template <class R>
__global__ void __launch_bounds__(kSumColumns* kSumGroups)
    sum_chunks_kernel(const float* partials, R* result, std::int64_t columns, std::int64_t chunks) {
  __shared__ float shared[kSumGroups][kSumColumns];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kSumColumns + threadIdx.x;
  float sum = 0.0f;
  if (column < columns) {
    for (std::int64_t chunk = threadIdx.y; chunk < chunks; chunk += kSumGroups) {
      sum += partials[chunk * columns + column];
    }
  }
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= columns) return;
  float total = 0.0f;
#pragma unroll
  for (int group = 0; group < kSumGroups; ++group) total += shared[group][threadIdx.x];
  result[column] = narrow<R>(total);
}

// Threads along a row in the first stage, for a row of so many vectors.
int lanes_for(std::int64_t vectors) {
  int lanes = 1;
  while (lanes < 32 && lanes < vectors) lanes *= 2;
  return lanes;
}

template <class T, int kCount>
void sum_rows(const T* x, float* partials, std::int64_t rows, std::int64_t columns,
              std::int64_t chunks, cudaStream_t stream) {
  const std::int64_t vectors = columns / kCount;
  const int lanes = lanes_for(vectors);
  const dim3 blocks(static_cast<unsigned>(chunks),
                    static_cast<unsigned>((vectors + lanes - 1) / lanes));
  sum_rows_kernel<T, kCount><<<blocks, kThreads, 0, stream>>>(x, partials, rows, columns, lanes,
                                                              (rows + chunks - 1) / chunks);
}

}  // namespace

CudaActivation cuda_activation(std::string_view kind) {
  if (kind.empty() || kind == "linear") return CudaActivation::Linear;
  if (kind == "relu") return CudaActivation::Relu;
  if (kind == "relu6") return CudaActivation::Relu6;
  if (kind == "leaky_relu") return CudaActivation::LeakyRelu;
  if (kind == "gelu") return CudaActivation::Gelu;
  if (kind == "gelu_tanh") return CudaActivation::GeluTanh;
  if (kind == "silu") return CudaActivation::Silu;
  if (kind == "tanh") return CudaActivation::Tanh;
  if (kind == "sigmoid") return CudaActivation::Sigmoid;
  if (kind == "softplus") return CudaActivation::Softplus;
  fail<UsageError>("'{}' is not an activation", kind);
}

void BiasActivation::run(void* y, const void* bias, cudaStream_t stream) const {
  if (!changes_something()) return;
  if (!biased) bias = nullptr;
  cuda_dispatch_float(dtype, [&](auto zero) {
    using T = decltype(zero);
    if (bias_dtype == dtype) {
      run_bias_activation(*this, static_cast<T*>(y), static_cast<const T*>(bias), stream);
    } else {
      run_bias_activation(*this, static_cast<T*>(y), static_cast<const float*>(bias), stream);
    }
  });
  check_launch("bias and activation");
}

// Enough blocks to fill a large GPU, but chunks large enough to be worth a block.
std::int64_t ColumnSum::chunks() const {
  constexpr std::int64_t kBlocks = 1024;
  constexpr std::int64_t kLeastElements = 16 * 1024;
  const std::int64_t tiles = std::max<std::int64_t>(1, columns / 256);
  const std::int64_t worth = rows * columns / (kLeastElements * tiles);
  return std::max<std::int64_t>(1, std::min({worth, (kBlocks + tiles - 1) / tiles, rows}));
}

std::size_t ColumnSum::workspace_bytes() const {
  return static_cast<std::size_t>(chunks() * columns) * sizeof(float);
}

void ColumnSum::run(const void* x, void* result, void* workspace, cudaStream_t stream) const {
  if (columns == 0) return;
  auto* partials = static_cast<float*>(workspace);
  cuda_dispatch_float(dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* matrix = static_cast<const T*>(x);
    if (columns % kCommonVectorSize<T> == 0 && is_wide(x)) {
      sum_rows<T, kCommonVectorSize<T>>(matrix, partials, rows, columns, chunks(), stream);
    } else {
      sum_rows<T, 1>(matrix, partials, rows, columns, chunks(), stream);
    }
  });
  check_launch("the sums of chunks of rows");
  cuda_dispatch_float(result_dtype, [&](auto zero) {
    using R = decltype(zero);
    const unsigned blocks = static_cast<unsigned>((columns + kSumColumns - 1) / kSumColumns);
    sum_chunks_kernel<R><<<blocks, dim3(kSumColumns, kSumGroups), 0, stream>>>(
        partials, static_cast<R*>(result), columns, chunks());
  });
  check_launch("the sums of columns");
}

}  // namespace lockstep
