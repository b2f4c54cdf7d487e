// GatherGrad: adds every row of dy to the table row with its index, in the order of the indices and
// without atomics.
//
// The indices are sorted with their positions (stable_sort.cuh), so that the rows of dy for one
// table row are consecutive. Each block then takes a chunk of fixed length, so that a very frequent
// index (padding) is divided among blocks like all others. A chunk writes table rows that it has
// completely; sums that it shares with neighbouring chunks go to the workspace, and a second launch
// adds them up in the chunk where such a row begins.
#include <algorithm>

#include "lockstep/kernels/cuda/primitives/elements.cuh"
#include "lockstep/kernels/cuda/primitives/stable_sort.cuh"
#include "lockstep/kernels/cuda/shape/gather.cuh"
#include "lockstep/kernels/cuda/shape/shape.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 128;
constexpr int kChunk = 64;  // rows of dy
constexpr int kLoads = 4;   // of these rows in flight per thread
constexpr std::int64_t kMostIndices = std::int64_t{1} << 31;

// Converts the indices to sort keys; those outside the table become `rows`, which sorts last.
template <class Index>
__global__ void take_indices(const Index* __restrict__ indices, SortedKeys to, std::uint32_t count,
                             std::uint32_t rows, FaultPlace fault) {
  const std::uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= count) return;
  const auto index = static_cast<std::int64_t>(indices[at]);
  const bool inside = index >= 0 && index < rows;
  if (!inside) fault.report(index);
  to.keys[at] = inside ? static_cast<std::uint32_t>(index) : rows;
  to.places[at] = at;
}

// The sums that chunks share with their neighbours, (chunks, columns) each.
struct SharedSums {
  float* leading = nullptr;   // of the row that began in an earlier chunk
  float* trailing = nullptr;  // of the row that begins here and continues in the next chunk
};

struct GradForm {
  std::uint32_t count = 0;  // of indices
  std::uint32_t rows = 0;   // of the table
  std::int64_t columns = 0;
  std::uint32_t column_tiles = 1;
};

template <int V>
struct Sums {
  float items[V];

  __device__ __forceinline__ Sums() {
#pragma unroll
    for (int i = 0; i < V; ++i) items[i] = 0.0f;
  }
  template <class T>
  __device__ __forceinline__ void add(const Vector<T, V>& vector) {
#pragma unroll
    for (int i = 0; i < V; ++i) items[i] += widen(vector.items[i]);
  }
  template <class T>
  __device__ __forceinline__ void store(T* to) const {
    Vector<T, V> vector;
#pragma unroll
    for (int i = 0; i < V; ++i) vector.items[i] = narrow<T>(items[i]);
    store_vector(to, vector);
  }
  // To and from the workspace, which is not aligned for vectors.
  __device__ __forceinline__ void keep(float* to) const {
#pragma unroll
    for (int i = 0; i < V; ++i) to[i] = items[i];
  }
  __device__ __forceinline__ void add_kept(const float* from) {
#pragma unroll
    for (int i = 0; i < V; ++i) items[i] += from[i];
  }
};

// A block processes the chunk blockIdx.x / column_tiles, a thread V columns of it.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    sum_chunks(const T* __restrict__ dy, SortedKeys sorted, T* __restrict__ table,
               SharedSums shared, GradForm form) {
  __shared__ std::uint32_t keys[kChunk];
  __shared__ std::uint32_t places[kChunk];
  const std::uint32_t chunk = blockIdx.x / form.column_tiles;
  const std::uint32_t tile = blockIdx.x - chunk * form.column_tiles;
  const std::uint32_t begin = chunk * kChunk;
  const int length = static_cast<int>(min(form.count - begin, std::uint32_t{kChunk}));
  if (threadIdx.x < length) {
    keys[threadIdx.x] = sorted.keys[begin + threadIdx.x];
    places[threadIdx.x] = sorted.places[begin + threadIdx.x];
  }
  __syncthreads();
  const std::int64_t column = (std::int64_t{tile} * kThreads + threadIdx.x) * V;
  if (column >= form.columns) return;

  std::uint32_t row = keys[0];
  bool leads = begin > 0 && sorted.keys[begin - 1] == row;
  const bool goes_on =
      begin + length < form.count && sorted.keys[begin + length] == keys[length - 1];
  const std::int64_t kept = std::int64_t{chunk} * form.columns + column;
  Sums<V> sums;
  const auto finish = [&](bool last) {
    if (row >= form.rows) return;
    if (leads) {
      sums.keep(shared.leading + kept);
    } else if (last && goes_on) {
      sums.keep(shared.trailing + kept);
    } else {
      sums.store(table + row * form.columns + column);
    }
  };
  for (int at = 0; at < length; at += kLoads) {
    Vector<T, V> loaded[kLoads];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      if (at + load < length) {
        loaded[load] = load_vector<T, V>(dy + places[at + load] * form.columns + column);
      }
    }
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      if (at + load >= length) continue;
      const std::uint32_t next = keys[at + load];
      if (next != row) {
        finish(false);
        row = next;
        leads = false;
        sums = Sums<V>();
      }
      sums.add(loaded[load]);
    }
  }
  finish(true);
}

// Adds up the row that begins in a chunk and continues in the next ones.
template <int V, class T>
__global__ void __launch_bounds__(kThreads)
    join_chunks(SortedKeys sorted, T* __restrict__ table, SharedSums shared, GradForm form) {
  std::uint32_t chunk = blockIdx.x / form.column_tiles;
  const std::uint32_t tile = blockIdx.x - chunk * form.column_tiles;
  const std::int64_t column = (std::int64_t{tile} * kThreads + threadIdx.x) * V;
  const std::uint32_t begin = chunk * kChunk;
  std::uint32_t end = begin + kChunk;
  if (column >= form.columns || end >= form.count) return;
  const std::uint32_t row = sorted.keys[end - 1];
  const bool goes_on = sorted.keys[end] == row;
  const bool leads = begin > 0 && sorted.keys[begin - 1] == row;
  if (row >= form.rows || !goes_on || leads) return;
  Sums<V> sums;
  sums.add_kept(shared.trailing + std::int64_t{chunk} * form.columns + column);
  do {
    ++chunk;
    end += kChunk;
    sums.add_kept(shared.leading + std::int64_t{chunk} * form.columns + column);
  } while (end < form.count && sorted.keys[end] == row);
  sums.store(table + row * form.columns + column);
}

// The workspace holds the sort's scratch memory, then the shared sums.
struct GradPlan {
  StableSort sort;
  GradForm form;
  std::uint32_t chunks = 0;

  explicit GradPlan(const KernelCall& call)
      : sort(call.in_shape(1).elements(), call.out_shape(0)[0]) {
    form.count = sort.count;
    form.rows = static_cast<std::uint32_t>(call.out_shape(0)[0]);
    form.columns = row_elements(call.out_shape(0));
    chunks = (form.count + kChunk - 1) / kChunk;
  }

  std::size_t sort_bytes() const {
    return (sort.words() * sizeof(std::uint32_t) + 255) / 256 * 256;
  }
  std::size_t sums() const { return std::size_t{chunks} * static_cast<std::size_t>(form.columns); }
  std::size_t bytes() const { return sort_bytes() + 2 * sums() * sizeof(float); }
};

template <int V, class T>
void launch_sums(const GradPlan& plan, const Binding& binding, const SortedKeys& sorted,
                 cudaStream_t stream) {
  GradForm form = plan.form;
  const std::int64_t vectors = form.columns / V;
  form.column_tiles = static_cast<std::uint32_t>((vectors + kThreads - 1) / kThreads);
  auto* sums = reinterpret_cast<float*>(binding.workspace + plan.sort_bytes());
  const SharedSums shared{sums, sums + plan.sums()};
  const unsigned blocks = plan.chunks * form.column_tiles;
  T* table = binding.out<T>(0);
  sum_chunks<V><<<blocks, kThreads, 0, stream>>>(binding.in<T>(0), sorted, table, shared, form);
  check_launch("sum_chunks");
  join_chunks<V><<<blocks, kThreads, 0, stream>>>(sorted, table, shared, form);
  check_launch("join_chunks");
}

template <class Index, class T>
void launch(const GradPlan& plan, const Binding& binding, cudaStream_t stream) {
  const GradForm& form = plan.form;
  const auto bytes = static_cast<std::size_t>(form.rows * form.columns) * sizeof(T);
  if (bytes > 0) check_cuda(cudaMemsetAsync(binding.outputs[0], 0, bytes, stream), "zeroing");
  if (form.count == 0) return;
  auto* scratch = reinterpret_cast<std::uint32_t*>(binding.workspace);
  take_indices<<<cuda_blocks(form.count, kThreads, kMostIndices), kThreads, 0, stream>>>(
      binding.in<Index>(1), plan.sort.unsorted(scratch), form.count, form.rows,
      FaultPlace(binding));
  check_launch("take_indices");
  if (bytes == 0) return;
  const SortedKeys sorted = plan.sort.launch(scratch, stream);
  constexpr int V = kCommonVectorSize<T>;
  const bool vectorised = form.columns % V == 0 && is_aligned<T, V>(binding.in<T>(0)) &&
                          is_aligned<T, V>(binding.out<T>(0));
  if (vectorised) {
    launch_sums<V, T>(plan, binding, sorted, stream);
  } else {
    launch_sums<1, T>(plan, binding, sorted, stream);
  }
}

std::unique_ptr<Kernel> make_gather_grad(const KernelCall& call) {
  const std::int64_t rows = call.out_shape(0)[0];
  return dispatch_index(call.in_dtype(1), [&](auto index) {
    return cuda_dispatch_float(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
      using Index = decltype(index);
      using T = decltype(zero);
      return std::make_unique<TableKernel>(
          rows, [plan = GradPlan(call)](const Binding& binding, cudaStream_t stream) {
            launch<Index, T>(plan, binding, stream);
          });
    });
  });
}

std::size_t workspace_bytes(const KernelCall& call) {
  return GradPlan(call).bytes();
}

bool supports(const KernelCall& call) {
  return has_cuda_floats(call) && is_floating(call.in_dtype(0)) && call.row_major() &&
         call.in_shape(1).elements() < kMostIndices && call.out_shape(0)[0] < kMostIndices;
}

}  // namespace

void add_cuda_gather_grad(KernelLibrary& library) {
  library.add(Op::GatherGrad, {.name = "cuda.gather_grad",
                               .supports = supports,
                               .make = make_gather_grad,
                               .workspace_bytes = workspace_bytes});
}

}  // namespace lockstep
