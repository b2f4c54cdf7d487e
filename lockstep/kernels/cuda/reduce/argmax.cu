// ArgMax: the index of the first largest element along an axis, (outer, extent, inner) → (outer,
// inner). NaN counts as smaller than every number.
//
// Rows are searched by teams of a few threads or by blocks, whose results are compared by value and
// then by index, so that the order does not matter; columns by one thread each, so that loads are
// coalesced.
#include <algorithm>
#include <bit>

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/reduction.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kLongRow = 2048;  // elements from which on a row gets a block

template <class C>
struct Find {
  C value;
  std::int64_t at;
};

template <class C>
__device__ __forceinline__ bool larger(C value, C than) {
  return (value > than) | ((than != than) & (value == value));
}

template <class C>
__device__ __forceinline__ Find<C> better(const Find<C>& a, const Find<C>& b) {
  return larger(b.value, a.value) | ((b.value == a.value) & (b.at < a.at)) ? b : a;
}

// A thread's result over every lanes-th element, from its lane on. All start with the first
// element.
template <class T>
__device__ __forceinline__ Find<Wide<T>> find_in_row(const T* x, std::int64_t extent, int lane,
                                                     int lanes) {
  Find<Wide<T>> best{widen(x[0]), 0};
#pragma unroll 4
  for (std::int64_t k = lane; k < extent; k += lanes) {
    const auto value = widen(x[k]);
    if (larger(value, best.value)) best = {value, k};
  }
  return best;
}

template <class C>
__device__ __forceinline__ Find<C> join_finds(Find<C> best, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    const Find<C> other{
        static_cast<C>(__shfl_down_sync(0xffffffffu, best.value, distance, lanes)),
        __shfl_down_sync(0xffffffffu, static_cast<long long>(best.at), distance, lanes)};
    best = better(best, other);
  }
  return best;
}

// One row per team of `lanes` threads, a power of two up to 32.
template <class T>
__global__ void __launch_bounds__(kThreads)
    argmax_short_rows(const T* __restrict__ x, std::int64_t* __restrict__ y, std::int64_t outer,
                      std::int64_t extent, int lanes) {
  const std::int64_t thread = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const std::int64_t row = thread >> (31 - __clz(lanes));
  const int lane = threadIdx.x & (lanes - 1);
  Find<Wide<T>> best{};
  if (row < outer) best = find_in_row(x + row * extent, extent, lane, lanes);
  best = join_finds(best, lanes);
  if (row < outer && lane == 0) y[row] = best.at;
}

// One row per block.
template <class T>
__global__ void __launch_bounds__(kThreads)
    argmax_long_rows(const T* __restrict__ x, std::int64_t* __restrict__ y, std::int64_t extent) {
  __shared__ Find<Wide<T>> of_warps[kThreads / 32];
  const std::int64_t row = blockIdx.x;
  Find<Wide<T>> best = find_in_row(x + row * extent, extent, threadIdx.x, kThreads);
  best = join_finds(best, 32);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x < 32) {
    best = join_finds(of_warps[threadIdx.x % (kThreads / 32)], kThreads / 32);
    if (threadIdx.x == 0) y[row] = best.at;
  }
}

// One column per thread.
template <class T>
__global__ void __launch_bounds__(kThreads)
    argmax_columns(const T* __restrict__ x, std::int64_t* __restrict__ y, std::int64_t results,
                   std::int64_t extent, std::int64_t inner) {
  const std::int64_t result = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (result >= results) return;
  const T* from = x + result / inner * extent * inner + result % inner;
  Find<Wide<T>> best{widen(from[0]), 0};
#pragma unroll 4
  for (std::int64_t k = 1; k < extent; ++k) {
    const auto value = widen(from[k * inner]);
    if (larger(value, best.value)) best = {value, k};
  }
  y[result] = best.at;
}

template <class T>
void launch(const T* x, std::int64_t* y, std::int64_t results, std::int64_t extent,
            std::int64_t inner, cudaStream_t stream) {
  constexpr std::int64_t kMostBlocks = (std::int64_t{1} << 31) - 1;
  if (inner > 1) {
    const unsigned blocks = cuda_blocks(results, kThreads, kMostBlocks);
    argmax_columns<<<blocks, kThreads, 0, stream>>>(x, y, results, extent, inner);
  } else if (extent >= kLongRow) {
    argmax_long_rows<<<static_cast<unsigned>(results), kThreads, 0, stream>>>(x, y, extent);
  } else {
    const auto shares = static_cast<unsigned>(std::clamp<std::int64_t>((extent + 3) / 4, 1, 32));
    const int lanes = static_cast<int>(std::bit_ceil(shares));
    const unsigned blocks = cuda_blocks(results * lanes, kThreads, kMostBlocks);
    argmax_short_rows<<<blocks, kThreads, 0, stream>>>(x, y, results, extent, lanes);
  }
  check_launch("argmax");
}

std::unique_ptr<Kernel> make_argmax(const KernelCall& call) {
  const int axis = static_cast<int>(call.attrs().integer("axis"));
  const Shape& shape = call.in_shape(0);
  const std::int64_t extent = shape[axis];
  std::int64_t inner = 1;
  for (int i = axis + 1; i < shape.rank(); ++i) inner *= shape[i];
  const std::int64_t results = call.out_shape(0).elements();
  return cuda_dispatch(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
    using T = decltype(zero);
    if constexpr (std::is_same_v<T, bool> || std::is_same_v<T, double>) {
      fail<InternalError>("[cuda] there is no argmax of {}", name_of(call.in_dtype(0)));
    } else {
      return make_cuda_kernel([extent, inner, results](const Binding& b, cudaStream_t stream) {
        if (results > 0) {
          launch(b.in<T>(0), b.out<std::int64_t>(0), results, extent, inner, stream);
        }
      });
    }
  });
}

bool supports(const KernelCall& call) {
  return has_cuda_floats(call) && call.row_major();
}

}  // namespace

void add_cuda_argmax(KernelLibrary& library) {
  library.add(Op::ArgMax, {.name = "cuda.argmax", .supports = supports, .make = make_argmax});
}

}  // namespace lockstep
