// Casts of many values between f32 and 16 bits in one launch: the weights of a model before a step,
// their gradients after it. A table of the values is passed as a kernel parameter; each block casts
// a slice of one value.
#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/vectors.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 8;  // elements that a thread casts at once
constexpr std::int64_t kPiece = 8 * kThreads * kWidth;

template <class From, class To>
struct Listed {
  const From* from = nullptr;
  To* to = nullptr;
  std::int64_t count = 0;
  int first_piece = 0;
  bool aligned = false;
};

// As many values as fit into the parameters of any kernel.
template <class From, class To>
struct CastTable {
  static constexpr int kMost = 100;
  Listed<From, To> values[kMost];
  int count = 0;
  int pieces = 0;
};
static_assert(sizeof(CastTable<float, __half>) < 3600);

template <class T>
__device__ __forceinline__ void load_eight(const T* from, float (&values)[kWidth]) {
  constexpr int kLoad = kVectorSize<T>;
#pragma unroll
  for (int i = 0; i < kWidth; i += kLoad) {
    float part[kLoad];
    load_floats<T, kLoad>(from + i, part);
#pragma unroll
    for (int k = 0; k < kLoad; ++k) values[i + k] = part[k];
  }
}

template <class T>
__device__ __forceinline__ void store_eight(T* to, const float (&values)[kWidth]) {
  constexpr int kStore = kVectorSize<T>;
#pragma unroll
  for (int i = 0; i < kWidth; i += kStore) {
    float part[kStore];
#pragma unroll
    for (int k = 0; k < kStore; ++k) part[k] = values[i + k];
    store_floats<T, kStore>(to + i, part);
  }
}

template <class From, class To>
__global__ void __launch_bounds__(kThreads)
    cast_list(const __grid_constant__ CastTable<From, To> table) {
  const int piece = static_cast<int>(blockIdx.x);
  int low = 0;  // finds the last value that begins at the piece or before it
  int high = table.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table.values[middle].first_piece <= piece) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const Listed<From, To>& value = table.values[low];
  const std::int64_t begin = (piece - value.first_piece) * kPiece;
  const std::int64_t end = min(begin + kPiece, value.count);
  const int thread = static_cast<int>(threadIdx.x);
  std::int64_t rest = begin;
  if (value.aligned) {
    rest = begin + (end - begin) / kWidth * kWidth;
#pragma unroll 4
    for (std::int64_t i = begin + thread * kWidth; i < rest; i += kThreads * kWidth) {
      float values[kWidth];
      load_eight(value.from + i, values);
      store_eight(value.to + i, values);
    }
  }
  for (std::int64_t i = rest + thread; i < end; i += kThreads) {
    value.to[i] = rounded<To>(as_float(value.from[i]));
  }
}

template <class From, class To>
class CastList final : public Kernel {
 public:
  explicit CastList(const KernelCall& call) {
    for (std::size_t i = 0; i < call.in_count(); ++i) {
      counts_.push_back(call.in_shape(i).elements());
    }
  }

  void bind(const Binding& binding) override {
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] == 0) continue;
      if (tables_.empty() || tables_.back().count == CastTable<From, To>::kMost) {
        tables_.emplace_back();
      }
      CastTable<From, To>& table = tables_.back();
      const From* from = binding.in<From>(i);
      To* to = binding.out<To>(i);
      table.values[table.count++] = {from, to, counts_[i], table.pieces,
                                     all_on_vector_boundaries(from, to)};
      table.pieces += static_cast<int>((counts_[i] + kPiece - 1) / kPiece);
    }
  }

  void run(Stream& stream) override {
    for (const CastTable<From, To>& table : tables_) {
      cast_list<<<static_cast<unsigned>(table.pieces), kThreads, 0, cuda_stream(stream)>>>(table);
      check_launch("cast_list");
    }
  }

 private:
  std::vector<std::int64_t> counts_;
  std::vector<CastTable<From, To>> tables_;
};

template <class Small>
std::unique_ptr<Kernel> make_with(const KernelCall& call, bool widens) {
  if (widens) return std::make_unique<CastList<Small, float>>(call);
  return std::make_unique<CastList<float, Small>>(call);
}

std::unique_ptr<Kernel> make(const KernelCall& call) {
  const bool widens = call.output(0).type.dtype == DType::F32;
  const DType small = widens ? call.in_dtype(0) : call.output(0).type.dtype;
  return small == DType::F16 ? make_with<__half>(call, widens)
                             : make_with<__nv_bfloat16>(call, widens);
}

// Whether each value has the same layout as its cast.
bool same_layout(const KernelCall& call) {
  for (std::size_t i = 0; i < call.in_count(); ++i) {
    if (call.input(i).layout != call.output(i).layout) return false;
  }
  return true;
}

}  // namespace

bool casts_in_lists(const KernelCall& call) {
  const DType from = call.in_dtype(0);
  const DType to = call.output(0).type.dtype;
  return (from == DType::F32 && size_of(to) == 2) || (size_of(from) == 2 && to == DType::F32);
}

void add_cuda_cast_list(KernelLibrary& library) {
  library.add(Op::Cast, {.name = "cuda.cast_list",
                         .supports =
                             [](const KernelCall& call) {
                               return call.in_count() > 1 && casts_in_lists(call) &&
                                      same_layout(call);
                             },
                         .make = make});
}

}  // namespace lockstep
