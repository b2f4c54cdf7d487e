// Elementwise kernels (maps): one pass over memory that writes a contiguous output, each element
// a function of one element of one, two or three operands. The function is a functor over the types
// in which elements are computed; its result is stored as the output's type.
//
// The kernels are bound by memory bandwidth: a thread issues several 16-byte loads before it
// computes anything. A broadcast operand is read with strides (walk.cuh), also in vectors if its
// rows allow it. An output may overwrite an operand of the same shape: each element is read before
// it is written, by the same thread, and no pointer is declared __restrict__.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/elements.cuh"
#include "lockstep/kernels/cuda/primitives/walk.cuh"

namespace lockstep {

inline constexpr int kMapThreads = 256;
inline constexpr int kMapLoads = 4;   // vector loads in flight per thread, with one operand
inline constexpr int kWalkLoads = 2;  // the same per operand, with several
inline constexpr std::int64_t kMostBlocks = (std::int64_t{1} << 31) - 1;

// A group of a walk: V consecutive elements, or one element V times.
template <int V, class T>
__device__ __forceinline__ Vector<T, V> load_group(const T* from, bool same) {
  if constexpr (V > 1) {
    if (same) {
      Vector<T, V> vector;
      const T item = *from;
#pragma unroll
      for (int i = 0; i < V; ++i) vector.items[i] = item;
      return vector;
    }
  }
  return load_vector<T, V>(from);
}

// y[i] = f(x[i]), one tile per block; elements that do not fill a vector, or are not aligned to
// one, are processed one by one.
template <int V, class F, class X, class Y>
__global__ void __launch_bounds__(kMapThreads)
    map_unary(F f, const X* x, Y* y, std::int64_t count, bool aligned) {
  constexpr int kTile = V * kMapLoads * kMapThreads;
  const std::int64_t begin = std::int64_t{blockIdx.x} * kTile;
  const int left = static_cast<int>(min(count - begin, std::int64_t{kTile}));
  const int vectors = aligned ? left / V : 0;
  x += begin;
  y += begin;
  Vector<X, V> loaded[kMapLoads];
#pragma unroll
  for (int load = 0; load < kMapLoads; ++load) {
    const int at = load * kMapThreads + threadIdx.x;
    if (at < vectors) loaded[load] = load_vector<X, V>(x + at * V);
  }
#pragma unroll
  for (int load = 0; load < kMapLoads; ++load) {
    const int at = load * kMapThreads + threadIdx.x;
    if (at < vectors) {
      Vector<Y, V> result;
#pragma unroll
      for (int i = 0; i < V; ++i) result.items[i] = narrow<Y>(f(widen(loaded[load].items[i])));
      store_vector(y + at * V, result);
    }
  }
#pragma unroll 1
  for (int i = vectors * V + threadIdx.x; i < left; i += kMapThreads) {
    y[i] = narrow<Y>(f(widen(x[i])));
  }
}

template <class F, class X, class Y>
std::unique_ptr<Kernel> make_map_unary(std::int64_t count, F f) {
  return make_cuda_kernel([count, f](const Binding& binding, cudaStream_t stream) {
    constexpr int V = kCommonVectorSize<X, Y>;
    if (count == 0) return;
    const X* x = binding.in<X>(0);
    Y* y = binding.out<Y>(0);
    const bool aligned = is_aligned<X, V>(x) && is_aligned<Y, V>(y);
    const unsigned blocks = cuda_blocks(count, V * kMapLoads * kMapThreads, kMostBlocks);
    map_unary<V><<<blocks, kMapThreads, 0, stream>>>(f, x, y, count, aligned);
    check_launch("map_unary");
  });
}

// y[i] = x[offset of i].
template <int V, class T>
__global__ void __launch_bounds__(kMapThreads) read_walk(RowWalk<1> walk, const T* x, T* y) {
  const std::uint32_t tile = blockIdx.x * (kWalkLoads * kMapThreads) + threadIdx.x;
  Vector<T, V> loaded[kWalkLoads];
#pragma unroll
  for (int load = 0; load < kWalkLoads; ++load) {
    const std::uint32_t group = tile + load * kMapThreads;
    if (group >= walk.groups) continue;
    std::int64_t offsets[1];
    walk.locate(group, offsets);
    loaded[load] = load_group<V>(x + offsets[0], walk.steps[0] == 0);
  }
#pragma unroll
  for (int load = 0; load < kWalkLoads; ++load) {
    const std::uint32_t group = tile + load * kMapThreads;
    if (group < walk.groups) store_vector(y + std::int64_t{group} * V, loaded[load]);
  }
  if (tile < walk.tail) {
    const std::int64_t at = std::int64_t{walk.groups} * V + tile;
    y[at] = x[walk.steps[0] == 0 ? 0 : at];
  }
}

// y[i] = f(a[offset of i], b[offset of i]).
template <int V, class F, class A, class B, class Y>
__global__ void __launch_bounds__(kMapThreads)
    map_binary(RowWalk<2> walk, F f, const A* a, const B* b, Y* y) {
  const std::uint32_t tile = blockIdx.x * (kWalkLoads * kMapThreads) + threadIdx.x;
  Vector<A, V> loaded_a[kWalkLoads];
  Vector<B, V> loaded_b[kWalkLoads];
#pragma unroll
  for (int load = 0; load < kWalkLoads; ++load) {
    const std::uint32_t group = tile + load * kMapThreads;
    if (group >= walk.groups) continue;
    std::int64_t offsets[2];
    walk.locate(group, offsets);
    loaded_a[load] = load_group<V>(a + offsets[0], walk.steps[0] == 0);
    loaded_b[load] = load_group<V>(b + offsets[1], walk.steps[1] == 0);
  }
#pragma unroll
  for (int load = 0; load < kWalkLoads; ++load) {
    const std::uint32_t group = tile + load * kMapThreads;
    if (group >= walk.groups) continue;
    Vector<Y, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      result.items[i] =
          narrow<Y>(f(widen(loaded_a[load].items[i]), widen(loaded_b[load].items[i])));
    }
    store_vector(y + std::int64_t{group} * V, result);
  }
  if (tile < walk.tail) {
    const std::int64_t at = std::int64_t{walk.groups} * V + tile;
    const A item_a = a[walk.steps[0] == 0 ? 0 : at];
    const B item_b = b[walk.steps[1] == 0 ? 0 : at];
    y[at] = narrow<Y>(f(widen(item_a), widen(item_b)));
  }
}

// y[i] = condition[offset of i] ? a[offset of i] : b[offset of i].
template <int V, class T>
__global__ void __launch_bounds__(kMapThreads)
    map_select(RowWalk<3> walk, const bool* condition, const T* a, const T* b, T* y) {
  const std::uint32_t tile = blockIdx.x * (kWalkLoads * kMapThreads) + threadIdx.x;
  Vector<bool, V> loaded_c[kWalkLoads];
  Vector<T, V> loaded_a[kWalkLoads];
  Vector<T, V> loaded_b[kWalkLoads];
#pragma unroll
  for (int load = 0; load < kWalkLoads; ++load) {
    const std::uint32_t group = tile + load * kMapThreads;
    if (group >= walk.groups) continue;
    std::int64_t offsets[3];
    walk.locate(group, offsets);
    loaded_c[load] = load_group<V>(condition + offsets[0], walk.steps[0] == 0);
    loaded_a[load] = load_group<V>(a + offsets[1], walk.steps[1] == 0);
    loaded_b[load] = load_group<V>(b + offsets[2], walk.steps[2] == 0);
  }
#pragma unroll
  for (int load = 0; load < kWalkLoads; ++load) {
    const std::uint32_t group = tile + load * kMapThreads;
    if (group >= walk.groups) continue;
    Vector<T, V> result;
#pragma unroll
    for (int i = 0; i < V; ++i) {
      result.items[i] = loaded_c[load].items[i] ? loaded_a[load].items[i] : loaded_b[load].items[i];
    }
    store_vector(y + std::int64_t{group} * V, result);
  }
  if (tile < walk.tail) {
    const std::int64_t at = std::int64_t{walk.groups} * V + tile;
    const T item_a = a[walk.steps[1] == 0 ? 0 : at];
    const T item_b = b[walk.steps[2] == 0 ? 0 : at];
    y[at] = condition[walk.steps[0] == 0 ? 0 : at] ? item_a : item_b;
  }
}

// A walk split into pieces in two ways: in vectors of V, if it allows them, and element by element.
template <int N, int V>
struct Pieces {
  std::vector<typename StridedWalk<N>::Piece> in_vectors;
  std::vector<typename StridedWalk<N>::Piece> one_by_one;
  std::array<bool, N> same = {};  // arrays for which a group is one element

  explicit Pieces(const StridedWalk<N>& walk) : one_by_one(walk.pieces(1)) {
    if (walk.allows_vectors(V)) in_vectors = walk.pieces(V);
    for (std::size_t n = 0; n < N; ++n) same[n] = walk.inner_step(n) == 0;
  }
};

template <int N>
unsigned walk_blocks(const RowWalk<N>& walk) {
  return cuda_blocks(walk.groups, kWalkLoads * kMapThreads, kMostBlocks);
}

// Reads an operand with strides, from an offset, into a contiguous output. T is an unsigned integer
// of the elements' size (bitcast.cuh).
template <class T>
class ReadWalk {
 public:
  ReadWalk(const StridedWalk<1>& walk, std::int64_t offset) : pieces_(walk), offset_(offset) {}

  void launch(const T* from, T* y, cudaStream_t stream) const {
    const T* x = from + offset_;
    const bool vectorised = !pieces_.in_vectors.empty() && is_aligned<T, V>(y) &&
                            (pieces_.same[0] || is_aligned<T, V>(x));
    for (const auto& piece : vectorised ? pieces_.in_vectors : pieces_.one_by_one) {
      const unsigned blocks = walk_blocks(piece.walk);
      const T* from_here = x + piece.offsets[0];
      T* to_here = y + piece.at;
      if (vectorised) {
        read_walk<V><<<blocks, kMapThreads, 0, stream>>>(piece.walk, from_here, to_here);
      } else {
        read_walk<1><<<blocks, kMapThreads, 0, stream>>>(piece.walk, from_here, to_here);
      }
      check_launch("read_walk");
    }
  }

 private:
  static constexpr int V = kCommonVectorSize<T>;
  Pieces<1, V> pieces_;
  std::int64_t offset_;
};

template <class F, class A, class B, class Y>
std::unique_ptr<Kernel> make_map_binary(const StridedWalk<2>& walk, F f) {
  constexpr int V = kCommonVectorSize<A, B, Y>;
  return make_cuda_kernel([f, pieces = Pieces<2, V>(walk)](const Binding& binding,
                                                           cudaStream_t stream) {
    const A* a = binding.in<A>(0);
    const B* b = binding.in<B>(1);
    Y* y = binding.out<Y>(0);
    const bool vectorised = !pieces.in_vectors.empty() && is_aligned<Y, V>(y) &&
                            (pieces.same[0] || is_aligned<A, V>(a)) &&
                            (pieces.same[1] || is_aligned<B, V>(b));
    for (const auto& piece : vectorised ? pieces.in_vectors : pieces.one_by_one) {
      const unsigned blocks = walk_blocks(piece.walk);
      const A* a_here = a + piece.offsets[0];
      const B* b_here = b + piece.offsets[1];
      Y* y_here = y + piece.at;
      if (vectorised) {
        map_binary<V><<<blocks, kMapThreads, 0, stream>>>(piece.walk, f, a_here, b_here, y_here);
      } else {
        map_binary<1><<<blocks, kMapThreads, 0, stream>>>(piece.walk, f, a_here, b_here, y_here);
      }
      check_launch("map_binary");
    }
  });
}

template <class T>
std::unique_ptr<Kernel> make_map_select(const StridedWalk<3>& walk) {
  constexpr int V = kCommonVectorSize<T>;
  return make_cuda_kernel(
      [pieces = Pieces<3, V>(walk)](const Binding& binding, cudaStream_t stream) {
        const bool* condition = binding.in<bool>(0);
        const T* a = binding.in<T>(1);
        const T* b = binding.in<T>(2);
        T* y = binding.out<T>(0);
        const bool vectorised = !pieces.in_vectors.empty() && is_aligned<T, V>(y) &&
                                (pieces.same[0] || is_aligned<bool, V>(condition)) &&
                                (pieces.same[1] || is_aligned<T, V>(a)) &&
                                (pieces.same[2] || is_aligned<T, V>(b));
        for (const auto& piece : vectorised ? pieces.in_vectors : pieces.one_by_one) {
          const unsigned blocks = walk_blocks(piece.walk);
          const bool* c_here = condition + piece.offsets[0];
          const T* a_here = a + piece.offsets[1];
          const T* b_here = b + piece.offsets[2];
          T* y_here = y + piece.at;
          if (vectorised) {
            map_select<V>
                <<<blocks, kMapThreads, 0, stream>>>(piece.walk, c_here, a_here, b_here, y_here);
          } else {
            map_select<1>
                <<<blocks, kMapThreads, 0, stream>>>(piece.walk, c_here, a_here, b_here, y_here);
          }
          check_launch("map_select");
        }
      });
}

}  // namespace lockstep
