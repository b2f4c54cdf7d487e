// Rows of classes, and the softmax of a row. A team (row_team.cuh) processes a row. The largest
// logit is subtracted first, so that no exponential overflows; memory is read once, and later
// passes over a row hit the cache. A thread writes only elements that it has read itself, so
// results may overwrite logits and gradients.
#pragma once

#include <cmath>

#include "lockstep/kernels/cuda/primitives/row_team.cuh"

namespace lockstep {

struct ClassRows {
  std::int64_t rows = 0;
  std::int64_t classes = 0;
  explicit ClassRows(const Shape& shape)
      : rows(shape[-1] == 0 ? 0 : shape.elements() / shape[-1]), classes(shape[-1]) {}
};

// Calls f(index, value) for this thread's elements of a row.
template <class Team, int N, class T, class F>
__device__ __forceinline__ void for_each_of(const T* row, std::int64_t n, F&& f) {
  for_each_vector<Team, N>(n, [&](std::int64_t at) {
    float values[N];
    load_floats<T, N>(row + at, values);
#pragma unroll
    for (int i = 0; i < N; ++i) f(at + i, values[i]);
  });
}

// y = f(index, x) for this thread's elements; x and y may be the same.
template <class Team, int N, class T, class F>
__device__ __forceinline__ void map_row(const T* x, T* y, std::int64_t n, F&& f) {
  for_each_vector<Team, N>(n, [&](std::int64_t at) {
    float values[N];
    load_floats<T, N>(x + at, values);
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = f(at + i, values[i]);
    store_floats<T, N>(y + at, values);
  });
}

struct RowTotal {
  float largest;
  float sum;  // of e^(x - largest)
};

template <class Team, int N, class T>
__device__ __forceinline__ RowTotal total_of(const T* x, std::int64_t n) {
  float largest = -INFINITY;
  for_each_of<Team, N>(x, n, [&](std::int64_t, float v) { largest = fmaxf(largest, v); });
  largest = Team::largest(largest);
  float sum = 0;
  for_each_of<Team, N>(x, n, [&](std::int64_t, float v) { sum += expf(v - largest); });
  return {largest, Team::sum(sum)};
}

template <class Team, int N, class T>
__device__ __forceinline__ void write_softmax(const T* x, T* y, std::int64_t n,
                                              const RowTotal& total) {
  const float share = 1.0F / total.sum;
  map_row<Team, N>(x, y, n, [&](std::int64_t, float v) { return expf(v - total.largest) * share; });
}

// Requires that all floating-point values have the same type.
inline bool supports_class_rows(const KernelCall& call) {
  const auto fits = [&](ValueId id) {
    const DType dtype = call.graph.type(id).dtype;
    return !is_floating(dtype) || dtype == call.in_dtype(0);
  };
  return has_cuda_floats(call) && call.row_major() && std::ranges::all_of(call.node.inputs, fits) &&
         std::ranges::all_of(call.node.outputs, fits);
}

}  // namespace lockstep
