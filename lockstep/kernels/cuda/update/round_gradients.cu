// RoundGradients: gradients to 16 bits, with error feedback, all of a bucket in one launch. A table
// of the values is passed as a kernel parameter; each block rounds a slice of one value.
// It is bound by memory: 8 bytes are read per element and 6 written.
#include "lockstep/graph/ops/error_feedback.h"

#include "lockstep/kernels/cuda/cuda.h"
#include "lockstep/kernels/cuda/primitives/vectors.cuh"

namespace lockstep {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 4;  // elements that a thread rounds at once
constexpr std::int64_t kPiece = 8 * kThreads * kWidth;

template <class Small>
struct Rounded {
  const float* gradient = nullptr;
  float* error = nullptr;
  Small* to = nullptr;
  std::int64_t count = 0;
  int first_piece = 0;
  bool aligned = false;
};

// As many values as fit into the parameters of any kernel.
template <class Small>
struct RoundTable {
  static constexpr int kMost = 80;
  Rounded<Small> values[kMost];
  int count = 0;
  int pieces = 0;
};
static_assert(sizeof(RoundTable<__half>) < 3600);

// The rounded element; replaces the error by what rounding lost, in units.
template <class Small>
__device__ __forceinline__ float round_one(float gradient, float& error, float unit, float inverse,
                                           bool writes) {
  const float sum = unit == 0.0F ? gradient : __fadd_rn(gradient, __fmul_rn(error, unit));
  const float kept = as_float(rounded<Small>(sum));
  const float lost = __fmul_rn(sum - kept, inverse);
  if (writes) error = isfinite(lost) ? lost : 0.0F;
  return kept;
}

template <class Small>
__global__ void __launch_bounds__(kThreads)
    round_list(const __grid_constant__ RoundTable<Small> table, const float* unit_of_weight,
               const float* keep) {
  const bool writes = *unit_of_weight > 0.0F;
  const float unit = writes && *keep != 0.0F ? *unit_of_weight : 0.0F;
  const float inverse = writes ? 1.0F / *unit_of_weight : 0.0F;
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
  const Rounded<Small>& value = table.values[low];
  const std::int64_t begin = (piece - value.first_piece) * kPiece;
  const std::int64_t end = min(begin + kPiece, value.count);
  const int thread = static_cast<int>(threadIdx.x);
  std::int64_t rest = begin;
  if (value.aligned) {
    rest = begin + (end - begin) / kWidth * kWidth;
#pragma unroll 2
    for (std::int64_t i = begin + thread * kWidth; i < rest; i += kThreads * kWidth) {
      float gradients[kWidth];
      float errors[kWidth];
      load_floats<float, kWidth>(value.gradient + i, gradients);
      load_floats<float, kWidth>(value.error + i, errors);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) {
        gradients[k] = round_one<Small>(gradients[k], errors[k], unit, inverse, writes);
      }
      store_floats<Small, kWidth>(value.to + i, gradients);
      store_floats<float, kWidth>(value.error + i, errors);
    }
  }
  for (std::int64_t i = rest + thread; i < end; i += kThreads) {
    float error = value.error[i];
    value.to[i] = rounded<Small>(round_one<Small>(value.gradient[i], error, unit, inverse, writes));
    value.error[i] = error;
  }
}

template <class Small>
class RoundList final : public Kernel {
 public:
  explicit RoundList(const KernelCall& call) {
    for (const ValueId id : call.node.outputs) {
      counts_.push_back(static_cast<std::int64_t>(call.graph.bytes(id) / sizeof(Small)));
    }
  }

  void bind(const Binding& binding) override {
    unit_ = binding.in<float>(0);
    keep_ = binding.in<float>(1);
    tables_.clear();
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] == 0) continue;
      if (tables_.empty() || tables_.back().count == RoundTable<Small>::kMost) {
        tables_.emplace_back();
      }
      RoundTable<Small>& table = tables_.back();
      const float* gradient = binding.in<float>(kRoundScalars + i);
      auto* error = const_cast<float*>(binding.in<float>(kRoundScalars + counts_.size() + i));
      Small* to = binding.out<Small>(i);
      table.values[table.count++] = {gradient,     error,
                                     to,           counts_[i],
                                     table.pieces, all_on_vector_boundaries(gradient, error, to)};
      table.pieces += static_cast<int>((counts_[i] + kPiece - 1) / kPiece);
    }
  }

  void run(Stream& stream) override {
    for (const RoundTable<Small>& table : tables_) {
      round_list<<<static_cast<unsigned>(table.pieces), kThreads, 0, cuda_stream(stream)>>>(
          table, unit_, keep_);
      check_launch("round_gradients");
    }
  }

 private:
  std::vector<std::int64_t> counts_;
  std::vector<RoundTable<Small>> tables_;
  const float* unit_ = nullptr;
  const float* keep_ = nullptr;
};

std::unique_ptr<Kernel> make(const KernelCall& call) {
  if (call.output(0).type.dtype == DType::F16) return std::make_unique<RoundList<__half>>(call);
  return std::make_unique<RoundList<__nv_bfloat16>>(call);
}

// Any layout, if a gradient, its error and the rounded gradient have the same.
bool supports(const KernelCall& call) {
  const std::size_t count = call.node.outputs.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Layout& layout = call.output(i).layout;
    if (call.input(kRoundScalars + i).layout != layout) return false;
    if (call.input(kRoundScalars + count + i).layout != layout) return false;
  }
  return true;
}

}  // namespace

void add_cuda_rounding(KernelLibrary& library) {
  library.add(Op::RoundGradients,
              {.name = "cuda.round_gradients", .supports = supports, .make = make});
}

}  // namespace lockstep
