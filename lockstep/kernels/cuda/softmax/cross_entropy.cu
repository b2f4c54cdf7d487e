// The cross entropies from logits and their gradients (defined in kernels/softmax_rows.h), each one
// pass over the rows. The sparse one can compute its gradient in the same pass, and the sum of its
// losses: in the same launch if one block can process all rows, otherwise in a second.
#include <limits>

#include "lockstep/kernels/cuda/softmax/softmax.cuh"

namespace lockstep {
namespace {

// A row and its label in one number; the label is clamped to 32 bits.
constexpr std::int64_t kLeastLabel = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kMostLabel = std::numeric_limits<std::int32_t>::max();

__device__ inline std::int64_t encoded(std::int64_t row, std::int64_t label) {
  const std::int64_t kept = min(max(label, kLeastLabel), kMostLabel);
  return row * (std::int64_t{1} << 32) + (kept - kLeastLabel);
}

std::string explain_label(std::int64_t value, std::int64_t classes) {
  const std::int64_t row = value >> 32;
  const std::int64_t label = value - row * (std::int64_t{1} << 32) + kLeastLabel;
  const char* beyond = "";
  if (label == kMostLabel) beyond = " or more";
  if (label == kLeastLabel) beyond = " or less";
  return fmt::format("label {}{} in row {} is outside [0, {}): the logits have {} classes", label,
                     beyond, row, classes, classes);
}

// Reports that a row has a bad label, unless an earlier row has one: only the first is reported.
// Called by one thread per bad row, so never if all labels are good.
template <class Label>
__device__ void report(const ClassRows& r, const Label* labels, std::int64_t row, Fault* fault,
                       std::int64_t step) {
  if (fault == nullptr) return;
  for (std::int64_t i = 0; i < row; ++i) {
    const auto label = static_cast<std::int64_t>(labels[i]);
    if (label < 0 || label >= r.classes) return;
  }
  fault->value = encoded(row, static_cast<std::int64_t>(labels[row]));
  __threadfence_system();
  fault->step = step;
}

template <class T, class Label>
struct SparseLoss {
  const T* logits;
  const Label* labels;
  const T* dloss;  // null: write the softmax instead of the gradient
  T* loss;         // one per row
  T* result;       // the softmax or the gradient; may be the logits
  Fault* fault;
  std::int64_t step;
};

// Returns the loss of a row, and writes its softmax or gradient. The loss of a bad label is NaN.
template <class Team, int N, class T, class Label>
__device__ __forceinline__ float sparse_row(const ClassRows& r, const SparseLoss<T, Label>& s,
                                            std::int64_t row) {
  const T* x = s.logits + row * r.classes;
  T* y = s.result + row * r.classes;
  const auto label = static_cast<std::int64_t>(s.labels[row]);
  const bool good = label >= 0 && label < r.classes;
  const float chosen = good ? as_float(x[label]) : NAN;
  const float factor = s.dloss == nullptr ? 0.0F : as_float(s.dloss[row]);
  const RowTotal total = total_of<Team, N>(x, r.classes);
  Team::wait();
  if (s.dloss == nullptr) {
    write_softmax<Team, N>(x, y, r.classes, total);
  } else {
    const float share = 1.0F / total.sum;
    map_row<Team, N>(x, y, r.classes, [&](std::int64_t i, float v) {
      const float scaled = as_float(rounded<T>(expf(v - total.largest) * share)) * factor;
      return i == label ? scaled - factor : scaled;
    });
  }
  if (Team::thread() == 0 && !good) report(r, s.labels, row, s.fault, s.step);
  return logf(total.sum) - (chosen - total.largest);
}

template <class T, class Label, class Team, int N>
__global__ void __launch_bounds__(kTeamBlock)
    sparse_cross_entropy(const ClassRows r, const SparseLoss<T, Label> s) {
  for (std::int64_t row = Team::first_row(); row < r.rows; row += Team::row_step()) {
    const float loss = sparse_row<Team, N>(r, s, row);
    if (Team::thread() == 0) s.loss[row] = rounded<T>(loss);
  }
}

constexpr int kSumThreads = 1024;
constexpr int kSumWarps = kSumThreads / 32;
constexpr std::int64_t kOneBlock = 32768;  // most logits for one block

// The sum over the threads of a block of kSumThreads, returned to its first thread.
__device__ double sum_of_block(double value) {
  __shared__ double warps[kSumWarps];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x >= 32) return 0;
  value = warps[threadIdx.x];
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFU, value, distance);
  }
  return value;
}

// All rows in one block, one warp per row, and the sum of their losses.
template <class T, class Label, int N>
__global__ void __launch_bounds__(kSumThreads)
    sparse_cross_entropy_sum(const ClassRows r, const SparseLoss<T, Label> s, T* sum) {
  double losses = 0;
  for (std::int64_t row = threadIdx.x / 32; row < r.rows; row += kSumWarps) {
    const float loss = sparse_row<RowTeam<32>, N>(r, s, row);
    if (threadIdx.x % 32 == 0) losses += static_cast<double>(as_float(rounded<T>(loss)));
  }
  losses = sum_of_block(losses);
  if (threadIdx.x == 0) *sum = rounded<T>(static_cast<float>(losses));
}

template <class T>
__global__ void __launch_bounds__(kSumThreads)
    sum_losses(const T* losses, std::int64_t rows, T* sum) {
  double total = 0;
  for (std::int64_t row = threadIdx.x; row < rows; row += kSumThreads) {
    total += static_cast<double>(as_float(losses[row]));
  }
  total = sum_of_block(total);
  if (threadIdx.x == 0) *sum = rounded<T>(static_cast<float>(total));
}

// dlogits = dloss · (softmax - one_hot(label)); it may overwrite the softmax.
template <class T, class Label, class Team, int N>
__global__ void __launch_bounds__(kTeamBlock)
    sparse_cross_entropy_grad(const ClassRows r, const T* dloss, const T* softmax,
                              const Label* labels, T* dx) {
  for (std::int64_t row = Team::first_row(); row < r.rows; row += Team::row_step()) {
    const float factor = as_float(dloss[row]);
    const auto label = static_cast<std::int64_t>(labels[row]);
    map_row<Team, N>(
        softmax + row * r.classes, dx + row * r.classes, r.classes,
        [&](std::int64_t i, float v) { return i == label ? v * factor - factor : v * factor; });
  }
}

template <class T, class Team, int N>
__global__ void __launch_bounds__(kTeamBlock)
    cross_entropy(const ClassRows r, const T* logits, const T* labels, T* loss, T* softmax) {
  for (std::int64_t row = Team::first_row(); row < r.rows; row += Team::row_step()) {
    const std::int64_t begin = row * r.classes;
    const T* x = logits + begin;
    const RowTotal total = total_of<Team, N>(x, r.classes);
    const float log_sum = logf(total.sum) + total.largest;
    float sum = 0;
    for_each_vector<Team, N>(r.classes, [&](std::int64_t at) {
      float values[N];
      float weights[N];
      load_floats<T, N>(x + at, values);
      load_floats<T, N>(labels + begin + at, weights);
      // A class of weight 0 adds nothing, even if its logit is minus infinity.
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (weights[i] != 0) sum = fmaf(weights[i], log_sum - values[i], sum);
      }
    });
    sum = Team::sum(sum);
    write_softmax<Team, N>(x, softmax + begin, r.classes, total);
    if (Team::thread() == 0) loss[row] = rounded<T>(sum);
  }
}

// dlogits = dloss · (softmax · Σ labels - labels); it may overwrite the softmax.
template <class T, class Team, int N>
__global__ void __launch_bounds__(kTeamBlock)
    cross_entropy_grad(const ClassRows r, const T* dloss, const T* softmax, const T* labels,
                       T* dx) {
  for (std::int64_t row = Team::first_row(); row < r.rows; row += Team::row_step()) {
    const std::int64_t begin = row * r.classes;
    const float factor = as_float(dloss[row]);
    float sum = 0;
    for_each_of<Team, N>(labels + begin, r.classes, [&](std::int64_t, float v) { sum += v; });
    const float weight = Team::sum(sum);
    for_each_vector<Team, N>(r.classes, [&](std::int64_t at) {
      float values[N];
      float weights[N];
      load_floats<T, N>(softmax + begin + at, values);
      load_floats<T, N>(labels + begin + at, weights);
#pragma unroll
      for (int i = 0; i < N; ++i) values[i] = factor * (values[i] * weight - weights[i]);
      store_floats<T, N>(dx + begin + at, values);
    });
  }
}

template <class T>
std::unique_ptr<Kernel> make_cross_entropy_of(const KernelCall& call) {
  return make_cuda_kernel([r = ClassRows(call.in_shape(0))](const Binding& b, cudaStream_t stream) {
    if (r.rows == 0) return;
    const bool aligned = all_on_vector_boundaries(b.in<T>(0), b.in<T>(1), b.out<T>(1));
    with_team<T>(r.classes, aligned, [&](auto team, auto width) {
      using Team = decltype(team);
      cross_entropy<T, Team, decltype(width)::value>
          <<<team_blocks<Team>(r.rows), kTeamBlock, 0, stream>>>(r, b.in<T>(0), b.in<T>(1),
                                                                 b.out<T>(0), b.out<T>(1));
    });
    check_launch("cross_entropy");
  });
}

template <class T>
std::unique_ptr<Kernel> make_cross_entropy_grad_of(const KernelCall& call) {
  return make_cuda_kernel([r = ClassRows(call.in_shape(1))](const Binding& b, cudaStream_t stream) {
    if (r.rows == 0) return;
    const bool aligned = all_on_vector_boundaries(b.in<T>(1), b.in<T>(2), b.out<T>(0));
    with_team<T>(r.classes, aligned, [&](auto team, auto width) {
      using Team = decltype(team);
      cross_entropy_grad<T, Team, decltype(width)::value>
          <<<team_blocks<Team>(r.rows), kTeamBlock, 0, stream>>>(r, b.in<T>(0), b.in<T>(1),
                                                                 b.in<T>(2), b.out<T>(0));
    });
    check_launch("cross_entropy_grad");
  });
}

template <class T, class Label>
class SparseCrossEntropy final : public Kernel {
 public:
  explicit SparseCrossEntropy(const KernelCall& call)
      : r_(call.in_shape(0)), gradient_(call.in_count() > 2), summed_(call.attrs().has("sum")) {}

  void bind(const Binding& b) override {
    loss_ = {.logits = b.in<T>(0),
             .labels = b.in<Label>(1),
             .dloss = gradient_ ? b.in<T>(2) : nullptr,
             .loss = summed_ ? reinterpret_cast<T*>(b.workspace) : b.out<T>(0),
             .result = b.out<T>(1),
             .fault = b.fault,
             .step = b.step};
    sum_ = summed_ ? b.out<T>(0) : nullptr;
    aligned_ = all_on_vector_boundaries(loss_.logits, loss_.result);
  }

  void run(Stream& stream) override {
    const cudaStream_t handle = cuda_stream(stream);
    if (summed_ && r_.rows * r_.classes <= kOneBlock && r_.classes <= kWarpRow) {
      const bool in_vectors = aligned_ && r_.classes % kVectorSize<T> == 0;
      const auto kernel = in_vectors ? sparse_cross_entropy_sum<T, Label, kVectorSize<T>>
                                     : sparse_cross_entropy_sum<T, Label, 1>;
      kernel<<<1, kSumThreads, 0, handle>>>(r_, loss_, sum_);
      return check_launch("sparse_cross_entropy_sum");
    }
    if (r_.rows > 0) launch_rows(handle);
    if (summed_) sum_losses<T><<<1, kSumThreads, 0, handle>>>(loss_.loss, r_.rows, sum_);
    check_launch("sparse_cross_entropy");
  }
  std::string explain(std::int64_t value) const override {
    return explain_label(value, r_.classes);
  }

 private:
  void launch_rows(cudaStream_t stream) const {
    with_team<T>(r_.classes, aligned_, [&](auto team, auto width) {
      using Team = decltype(team);
      sparse_cross_entropy<T, Label, Team, decltype(width)::value>
          <<<team_blocks<Team>(r_.rows), kTeamBlock, 0, stream>>>(r_, loss_);
    });
  }

  ClassRows r_;
  bool gradient_;
  bool summed_;
  bool aligned_ = false;
  SparseLoss<T, Label> loss_ = {};
  T* sum_ = nullptr;
};

// For the losses, if the output is their sum.
std::size_t loss_bytes(const KernelCall& call) {
  if (!call.attrs().has("sum")) return 0;
  return static_cast<std::size_t>(ClassRows(call.in_shape(0)).rows) * size_of(call.in_dtype(0));
}

template <class T, class Label>
std::unique_ptr<Kernel> make_sparse_grad_of(const KernelCall& call) {
  return make_cuda_kernel([r = ClassRows(call.in_shape(1))](const Binding& b, cudaStream_t stream) {
    if (r.rows == 0) return;
    const bool aligned = all_on_vector_boundaries(b.in<T>(1), b.out<T>(0));
    with_team<T>(r.classes, aligned, [&](auto team, auto width) {
      using Team = decltype(team);
      sparse_cross_entropy_grad<T, Label, Team, decltype(width)::value>
          <<<team_blocks<Team>(r.rows), kTeamBlock, 0, stream>>>(r, b.in<T>(0), b.in<T>(1),
                                                                 b.in<Label>(2), b.out<T>(0));
    });
    check_launch("sparse_cross_entropy_grad");
  });
}

// Calls make(Label{}) with the type of the labels.
template <class F>
std::unique_ptr<Kernel> with_labels(DType dtype, F&& make) {
  if (dtype == DType::U8) return make(std::uint8_t{});
  if (dtype == DType::I32) return make(std::int32_t{});
  return make(std::int64_t{});
}

template <class T>
std::unique_ptr<Kernel> make_of(const KernelCall& call) {
  switch (call.node.op) {
    case Op::SparseCrossEntropy:
      return with_labels(call.in_dtype(1), [&](auto label) -> std::unique_ptr<Kernel> {
        return std::make_unique<SparseCrossEntropy<T, decltype(label)>>(call);
      });
    case Op::SparseCrossEntropyGrad:
      return with_labels(call.in_dtype(2),
                         [&](auto label) { return make_sparse_grad_of<T, decltype(label)>(call); });
    case Op::CrossEntropy:
      return make_cross_entropy_of<T>(call);
    default:
      ensure(call.node.op == Op::CrossEntropyGrad, "not a cross entropy");
      return make_cross_entropy_grad_of<T>(call);
  }
}

std::unique_ptr<Kernel> make(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(0),
                             [&](auto zero) { return make_of<decltype(zero)>(call); });
}

}  // namespace

void add_cuda_cross_entropy(KernelLibrary& library) {
  const auto add = [&](Op op, std::string_view name) {
    library.add(op, {.name = name, .supports = supports_class_rows, .make = make});
  };
  library.add(Op::SparseCrossEntropy, {.name = "cuda.sparse_cross_entropy",
                                       .supports = supports_class_rows,
                                       .make = make,
                                       .workspace_bytes = loss_bytes,
                                       .offers = [](const KernelCall&, std::string_view extra) {
                                         return extra == "gradient";
                                       }});
  add(Op::SparseCrossEntropyGrad, "cuda.sparse_cross_entropy_grad");
  add(Op::CrossEntropy, "cuda.cross_entropy");
  add(Op::CrossEntropyGrad, "cuda.cross_entropy_grad");
}

}  // namespace lockstep
