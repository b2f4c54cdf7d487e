// The Euclidean norm over all elements of all values: sums of squares per piece, in double, which
// one block then adds up. Each value is split into pieces separately, even if values are adjacent
// in memory: the order of addition must not depend on where they are.
#include "lockstep/kernels/cuda/primitives/segments.cuh"

namespace lockstep {
namespace {

template <class T>
__global__ void __launch_bounds__(kSegmentThreads)
    sum_squares(const __grid_constant__ SegmentTable<T> table, double* sums) {
  const int piece = table.first_piece + static_cast<int>(blockIdx.x);
  const Segment<T>& s = segment_of(table, piece);
  double sum = 0;
  for_each_in_piece(s, piece, [&](std::int64_t at, auto width) {
    constexpr int kWidth = decltype(width)::value;
    float values[kWidth];
    load_floats<T, kWidth>(s.gradient + at, values);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const auto x = static_cast<double>(values[i]);
      sum = fma(x, x, sum);
    }
  });
  sum = block_sum(sum);
  if (threadIdx.x == 0) sums[piece] = sum;
}

// For a single block.
__global__ void __launch_bounds__(kSegmentThreads)
    finish_norm(const double* sums, int pieces, float* result) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < pieces; i += kSegmentThreads) sum += sums[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *result = static_cast<float>(sqrt(sum));
}

template <class T>
class GlobalNormKernel final : public Kernel {
 public:
  explicit GlobalNormKernel(const KernelCall& call) {
    for (std::size_t i = 0; i < call.in_count(); ++i) {
      counts_.push_back(call.in_shape(i).elements());
    }
  }

  void bind(const Binding& binding) override {
    result_ = binding.out<float>(0);
    sums_ = reinterpret_cast<double*>(binding.workspace);
    std::vector<Segment<T>> segments;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] == 0) continue;
      Segment<T> segment;
      segment.gradient = binding.in<T>(i);
      segment.count = counts_[i];
      segments.push_back(segment);
    }
    tables_ = make_tables(std::move(segments), true);
  }

  void run(Stream& stream) override {
    int pieces = 0;
    for (const SegmentTable<T>& table : tables_) {
      sum_squares<T>
          <<<static_cast<unsigned>(table.pieces), kSegmentThreads, 0, cuda_stream(stream)>>>(table,
                                                                                             sums_);
      pieces += table.pieces;
    }
    finish_norm<<<1, kSegmentThreads, 0, cuda_stream(stream)>>>(sums_, pieces, result_);
    check_launch("global_norm");
  }

 private:
  std::vector<std::int64_t> counts_;
  std::vector<SegmentTable<T>> tables_;
  double* sums_ = nullptr;
  float* result_ = nullptr;
};

std::unique_ptr<Kernel> make_global_norm(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(0), [&](auto zero) -> std::unique_ptr<Kernel> {
    return std::make_unique<GlobalNormKernel<decltype(zero)>>(call);
  });
}

std::size_t workspace_bytes(const KernelCall& call) {
  std::int64_t pieces = 0;
  for (std::size_t i = 0; i < call.in_count(); ++i) {
    pieces += norm_pieces(call.in_shape(i).elements());
  }
  return sizeof(double) * static_cast<std::size_t>(pieces);
}

// Whether a value has no padding; any order of axes will do.
bool is_dense(const KernelCall& call, std::size_t i) {
  return call.input(i).layout.blocks.empty();
}

bool supports_global_norm(const KernelCall& call) {
  for (std::size_t i = 0; i < call.in_count(); ++i) {
    if (!is_dense(call, i)) return false;
  }
  return has_cuda_floats(call);
}

NodeLayouts as_they_lie(const KernelCall& call) {
  NodeLayouts wish{std::vector<Layout>(call.in_count()), std::vector<Layout>(1)};
  for (std::size_t i = 0; i < call.in_count(); ++i) {
    if (is_dense(call, i)) wish.inputs[i] = call.input(i).layout;
  }
  return wish;
}

}  // namespace

void add_cuda_global_norm(KernelLibrary& library) {
  library.add(Op::GlobalNorm, {.name = "cuda.global_norm",
                               .supports = supports_global_norm,
                               .make = make_global_norm,
                               .workspace_bytes = workspace_bytes,
                               .layouts = as_they_lie});
}

}  // namespace lockstep
