// Updates all parameters of a model by a rule (update_rules.cuh) in one launch; adjacent parameters
// form one contiguous range, and memory is read and written once. Rules that depend on the norm of
// each parameter, and clipping by norm, first compute sums of squares, one launch each, in double
// and in a fixed order: per piece, then every block that needs a parameter's norm adds up its
// pieces. A scale of 0 or a reported fault skips the update: every launch checks for them first.
#include "lockstep/kernels/cuda/primitives/segments.cuh"
#include "lockstep/kernels/cuda/update/update_rules.cuh"

namespace lockstep {

void add_cuda_global_norm(KernelLibrary& library);  // global_norm.cu

namespace {

constexpr std::size_t kScalars = 3;  // inputs before the first parameter

// Sums of squares, each a row with a double per piece: of the scaled gradient before clipping; of
// the parameter; of the gradient as the rule sees it (lars) or the direction (lamb).
constexpr int kSums = 3;

struct UpdateStep {
  RuleOptions options;
  StepInputs inputs;
  double* sums;
  int all_pieces;
};

// In the order in which they run; only Update always does.
enum class Phase { Clipping, Norms, Update };

__device__ double norm_of(const double* sums, int first, int count) {
  const int thread = static_cast<int>(threadIdx.x);
  return sqrt(block_sum(thread < count ? sums[first + thread] : 0.0));
}

// p is the parameter's norm, other is g or u of graph/ops/update.h.
__device__ float trust_of(const RuleOptions& o, double p, double other) {
  if (p == 0 || other == 0) return 1;
  if (o.rule == CudaRule::Lamb) return static_cast<float>(p / other);
  return static_cast<float>(o.trust * p / (other + o.weight_decay * p + o.epsilon));
}

// The scalars for a block's range. All threads must call it.
template <Phase kPhase, class T>
__device__ RuleScalars scalars_of(const UpdateStep& u, const Segment<T>& s) {
  __shared__ RuleScalars shared;
  const RuleOptions& o = u.options;
  const auto norm = [&](int which) {
    return norm_of(u.sums + static_cast<std::int64_t>(which) * u.all_pieces, s.first_piece,
                   s.pieces);
  };
  double clipped = 0;
  double parameter = 0;
  double other = 0;
  if (kPhase != Phase::Clipping && o.clip_norm > 0) clipped = norm(0);
  const bool takes_norms = o.adapts() && !o.trusted;
  if (kPhase == Phase::Update && takes_norms) {
    parameter = norm(1);
    other = norm(2);
  }
  if (threadIdx.x < 32) {
    RuleScalars scalars = rule_scalars(o, u.inputs);
    if (clipped > o.clip_norm) scalars.scale *= static_cast<float>(o.clip_norm / clipped);
    if (kPhase == Phase::Update && o.adapts()) {
      scalars.step = takes_norms ? scalars.rate * trust_of(o, parameter, other) : scalars.rate;
    }
    if (threadIdx.x == 0) shared = scalars;
  }
  __syncthreads();
  return shared;
}

template <class T, int N>
__device__ __forceinline__ void load_elements(const Segment<T>& s, std::int64_t at, int slots,
                                              UpdateElement (&elements)[N]) {
  float values[N];
  load_floats<T, N>(s.parameter + at, values);
#pragma unroll
  for (int i = 0; i < N; ++i) elements[i].p = values[i];
  load_floats<T, N>(s.gradient + at, values);
#pragma unroll
  for (int i = 0; i < N; ++i) elements[i].g = values[i];
#pragma unroll
  for (int slot = 0; slot < 3; ++slot) {
    if (slot >= slots || s.slots[slot] == nullptr) continue;
    load_floats<T, N>(s.slots[slot] + at, values);
#pragma unroll
    for (int i = 0; i < N; ++i) elements[i].slots[slot] = values[i];
  }
}

template <class T, int N>
__device__ __forceinline__ void store_slots(const Segment<T>& s, std::int64_t at, int slots,
                                            const UpdateElement (&elements)[N]) {
#pragma unroll
  for (int slot = 0; slot < 3; ++slot) {
    if (slot >= slots || s.slots[slot] == nullptr) continue;
    float values[N];
#pragma unroll
    for (int i = 0; i < N; ++i) values[i] = elements[i].slots[slot];
    store_floats<T, N>(s.slots[slot] + at, values);
  }
}

template <class T, int N>
__device__ __forceinline__ void store_parameters(const Segment<T>& s, std::int64_t at,
                                                 const UpdateElement (&elements)[N]) {
  float values[N];
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] = elements[i].p;
  store_floats<T, N>(s.parameter + at, values);
}

// The most slots that a rule uses.
__host__ __device__ constexpr int slots_of(CudaRule rule) {
  switch (rule) {
    case CudaRule::Sgd:
    case CudaRule::Accumulate:
      return 0;
    case CudaRule::Adam:
    case CudaRule::Lamb:
      return 2;
    case CudaRule::RmsProp:
      return 3;
    default:
      return 1;
  }
}

template <class T, CudaRule kRule>
__global__ void __launch_bounds__(kSegmentThreads)
    update_segments(const __grid_constant__ SegmentTable<T> table, const UpdateStep u) {
  constexpr int kSlots = slots_of(kRule);
  const int piece = table.first_piece + static_cast<int>(blockIdx.x);
  const Segment<T>& s = segment_of(table, piece);
  // The first vector load is in flight while the scalars are computed.
  const std::int64_t first = first_vector(s, piece);
  UpdateElement early[kVectorSize<T>];
  if (first >= 0) load_elements<T, kVectorSize<T>>(s, first, kSlots, early);
  if (u.inputs.skips()) return;
  const RuleScalars scalars = scalars_of<Phase::Update>(u, s);
  for_each_in_piece(s, piece, [&](std::int64_t at, auto width) {
    constexpr int kWidth = decltype(width)::value;
    UpdateElement elements[kWidth];
    if (kWidth == kVectorSize<T> && at == first) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) elements[i] = early[i];
    } else {
      load_elements<T, kWidth>(s, at, kSlots, elements);
    }
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      if constexpr (kRule == CudaRule::RmsProp) {
        update_rmsprop(elements[i], scalars, s.slots[1] != nullptr, s.slots[2] != nullptr);
      } else {
        update_element<kRule>(elements[i], scalars);
      }
    }
    if constexpr (kRule != CudaRule::Lamb) store_slots<T, kWidth>(s, at, kSlots, elements);
    store_parameters<T, kWidth>(s, at, elements);
  });
}

__device__ __forceinline__ void add_square(double& sum, float value) {
  const auto x = static_cast<double>(value);
  sum = fma(x, x, sum);
}

// Sums of squares of each piece. For lamb this also updates the moments, because its direction
// depends on the new ones; for UpdateNorms it keeps them to itself.
template <class T, Phase kPhase, bool kStores = true>
__global__ void __launch_bounds__(kSegmentThreads)
    sum_segments(const __grid_constant__ SegmentTable<T> table, const UpdateStep u) {
  if (u.inputs.skips()) return;
  const int piece = table.first_piece + static_cast<int>(blockIdx.x);
  const Segment<T>& s = segment_of(table, piece);
  RuleScalars scalars = scalars_of<kPhase>(u, s);
  if constexpr (kPhase == Phase::Clipping) scalars.clip = INFINITY;
  const bool lamb = kPhase == Phase::Norms && u.options.rule == CudaRule::Lamb;
  double parameters = 0;
  double others = 0;
  for_each_in_piece(s, piece, [&](std::int64_t at, auto width) {
    constexpr int kWidth = decltype(width)::value;
    if constexpr (kPhase == Phase::Clipping) {
      float gradients[kWidth];
      load_floats<T, kWidth>(s.gradient + at, gradients);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) add_square(others, seen(gradients[i], scalars));
    } else {
      UpdateElement elements[kWidth];
      load_elements<T, kWidth>(s, at, lamb ? 2 : 0, elements);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        if (lamb) update_moments(elements[i], scalars);
      }
      if (lamb && kStores) store_slots<T, kWidth>(s, at, 2, elements);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        add_square(parameters, elements[i].p);
        add_square(others,
                   lamb ? lamb_direction(elements[i], scalars) : seen(elements[i].g, scalars));
      }
    }
  });
  parameters = block_sum(parameters);
  others = block_sum(others);
  if (threadIdx.x != 0) return;
  if constexpr (kPhase == Phase::Clipping) {
    u.sums[piece] = others;
  } else {
    u.sums[u.all_pieces + piece] = parameters;
    u.sums[2 * static_cast<std::int64_t>(u.all_pieces) + piece] = others;
  }
}

template <class T>
using TableKernel = void (*)(SegmentTable<T>, UpdateStep);

template <class T>
TableKernel<T> update_kernel(CudaRule rule) {
  switch (rule) {
    case CudaRule::Sgd:
      return update_segments<T, CudaRule::Sgd>;
    case CudaRule::SgdMomentum:
      return update_segments<T, CudaRule::SgdMomentum>;
    case CudaRule::Adam:
      return update_segments<T, CudaRule::Adam>;
    case CudaRule::RmsProp:
      return update_segments<T, CudaRule::RmsProp>;
    case CudaRule::Adagrad:
      return update_segments<T, CudaRule::Adagrad>;
    case CudaRule::Lars:
      return update_segments<T, CudaRule::Lars>;
    case CudaRule::Accumulate:
      return update_segments<T, CudaRule::Accumulate>;
    default:
      return update_segments<T, CudaRule::Lamb>;
  }
}

std::vector<std::int64_t> parameter_counts(const KernelCall& call) {
  const auto count = static_cast<std::size_t>(call.attrs().integer("count"));
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < count; ++i) {
    counts.push_back(call.in_shape(kScalars + i).elements());
  }
  return counts;
}

int norm_pieces_of(const std::vector<std::int64_t>& counts) {
  std::int64_t pieces = 0;
  for (const std::int64_t count : counts) pieces += norm_pieces(count);
  return static_cast<int>(pieces);
}

// What Update and UpdateNorms have in common: their inputs and launches.
template <class T>
class SegmentsKernel : public Kernel {
 protected:
  explicit SegmentsKernel(const KernelCall& call)
      : options_(call.attrs()),
        counts_(parameter_counts(call)),
        slots_(static_cast<std::size_t>(call.attrs().integer("slots"))) {
    // update_rmsprop expects the mean in slot 2, with or without momentum.
    const bool lone_mean = options_.rule == CudaRule::RmsProp && options_.momentum <= 0;
    second_slot_ = lone_mean ? 2 : 1;
  }

  void bind_inputs(const Binding& binding) {
    inputs_ = {binding.in<float>(0), binding.in<float>(1), binding.in<std::int64_t>(2),
               binding.fault};
    sums_ = reinterpret_cast<double*>(binding.workspace);
  }

  UpdateStep step() const { return {options_, inputs_, sums_, norm_pieces_of(counts_)}; }

  // Parameters and slots are inputs that an Update changes in place.
  Segment<T> segment_at(const Binding& binding, std::size_t i) const {
    const auto writable = [&](std::size_t list) {
      return const_cast<T*>(binding.in<T>(kScalars + list * counts_.size() + i));
    };
    Segment<T> segment;
    segment.parameter = writable(0);
    segment.gradient = writable(1);
    segment.count = counts_[i];
    for (std::size_t slot = 0; slot < slots_; ++slot) {
      segment.slots[slot == 1 ? second_slot_ : slot] = writable(2 + slot);
    }
    return segment;
  }

  void launch(TableKernel<T> kernel, Stream& stream) const {
    for (const SegmentTable<T>& table : tables_) {
      kernel<<<static_cast<unsigned>(table.pieces), kSegmentThreads, 0, cuda_stream(stream)>>>(
          table, step());
    }
    check_launch("update");
  }

  RuleOptions options_;
  std::vector<std::int64_t> counts_;
  StepInputs inputs_ = {};
  double* sums_ = nullptr;
  std::vector<SegmentTable<T>> tables_;

 private:
  std::size_t slots_;
  std::size_t second_slot_ = 1;
};

template <class T>
class UpdateKernel final : public SegmentsKernel<T> {
  using Base = SegmentsKernel<T>;
  using Base::counts_;
  using Base::options_;
  using Base::tables_;

 public:
  explicit UpdateKernel(const KernelCall& call) : Base(call) {}

  void bind(const Binding& binding) override {
    Base::bind_inputs(binding);
    std::vector<Segment<T>> segments;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      const Segment<T> next = Base::segment_at(binding, i);
      if (next.count == 0) continue;
      if (!segments.empty() && !options_.by_parameter() && segments.back().adjoins(next)) {
        segments.back().count += next.count;
      } else {
        segments.push_back(next);
      }
    }
    tables_ = make_tables(std::move(segments), options_.by_parameter());
  }

  void run(Stream& stream) override {
    if (options_.clip_norm > 0) Base::launch(sum_segments<T, Phase::Clipping>, stream);
    const bool norms = options_.adapts() && !options_.trusted;
    if (norms || options_.rule == CudaRule::Lamb) {
      Base::launch(sum_segments<T, Phase::Norms>, stream);
    }
    Base::launch(update_kernel<T>(options_.rule), stream);
  }
};

// Where norms go, and which pieces they are the norms of: as many as fit into the parameters of any
// kernel.
struct NormTargets {
  static constexpr int kMost = 64;
  float* results[kMost];
  int first_piece[kMost];
  int pieces[kMost];
  int count = 0;
};

// One block for each norm.
__global__ void __launch_bounds__(kSegmentThreads)
    finish_norms(const __grid_constant__ NormTargets targets, const double* sums,
                 const StepInputs inputs) {
  const int i = static_cast<int>(blockIdx.x);
  const double norm =
      inputs.skips() ? 0.0 : norm_of(sums, targets.first_piece[i], targets.pieces[i]);
  if (threadIdx.x == 0) *targets.results[i] = static_cast<float>(norm);
}

template <class T>
class UpdateNormsKernel final : public SegmentsKernel<T> {
  using Base = SegmentsKernel<T>;
  using Base::counts_;

 public:
  explicit UpdateNormsKernel(const KernelCall& call)
      : Base(call), of_(update_norm_of(call.attrs())) {
    Base::options_.clip_norm = 0;  // what it clips by is what is asked for here
  }

  void bind(const Binding& binding) override {
    Base::bind_inputs(binding);
    std::vector<Segment<T>> segments;
    targets_[0].clear();
    targets_[1].clear();
    int piece = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      const int pieces = static_cast<int>(norm_pieces(counts_[i]));
      add(targets_[0], binding.out<float>(i), piece, pieces);
      if (of_ == UpdateNorm::Trust) {
        add(targets_[1], binding.out<float>(counts_.size() + i), piece, pieces);
      }
      piece += pieces;
      if (counts_[i] > 0) segments.push_back(Base::segment_at(binding, i));
    }
    Base::tables_ = make_tables(std::move(segments), true);
  }

  void run(Stream& stream) override {
    const std::int64_t row = norm_pieces_of(counts_);
    if (of_ == UpdateNorm::Gradients) {
      Base::launch(sum_segments<T, Phase::Clipping>, stream);
      finish(targets_[0], Base::sums_, stream);
      return;
    }
    Base::launch(sum_segments<T, Phase::Norms, false>, stream);
    finish(targets_[0], Base::sums_ + row, stream);
    finish(targets_[1], Base::sums_ + 2 * row, stream);
  }

 private:
  static void add(std::vector<NormTargets>& all, float* result, int first_piece, int pieces) {
    if (all.empty() || all.back().count == NormTargets::kMost) all.emplace_back();
    NormTargets& targets = all.back();
    targets.results[targets.count] = result;
    targets.first_piece[targets.count] = first_piece;
    targets.pieces[targets.count] = pieces;
    ++targets.count;
  }

  void finish(const std::vector<NormTargets>& all, const double* sums, Stream& stream) const {
    for (const NormTargets& targets : all) {
      finish_norms<<<static_cast<unsigned>(targets.count), kSegmentThreads, 0,
                     cuda_stream(stream)>>>(targets, sums, Base::inputs_);
    }
    check_launch("update_norms");
  }

  UpdateNorm of_;
  std::vector<NormTargets>
      targets_[2];  // of parameters or gradients, and of what the rule compares
};

std::unique_ptr<Kernel> make_update(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(kScalars), [&](auto zero) -> std::unique_ptr<Kernel> {
    return std::make_unique<UpdateKernel<decltype(zero)>>(call);
  });
}

std::unique_ptr<Kernel> make_update_norms(const KernelCall& call) {
  return cuda_dispatch_float(call.in_dtype(kScalars), [&](auto zero) -> std::unique_ptr<Kernel> {
    return std::make_unique<UpdateNormsKernel<decltype(zero)>>(call);
  });
}

std::size_t norms_workspace_bytes(const KernelCall& call) {
  return sizeof(double) * kSums * static_cast<std::size_t>(norm_pieces_of(parameter_counts(call)));
}

std::size_t workspace_bytes(const KernelCall& call) {
  return RuleOptions(call.attrs()).by_parameter() ? norms_workspace_bytes(call) : 0;
}

// Any order of axes without padding: the layout pass gives a parameter, its gradient and its slots
// the same layout.
bool supports_update(const KernelCall& call) {
  for (std::size_t i = 0; i < call.in_count(); ++i) {
    if (!call.input(i).layout.blocks.empty()) return false;
  }
  return has_cuda_floats(call);
}

}  // namespace

void add_cuda_update(KernelLibrary& library) {
  library.add(Op::Update, {.name = "cuda.update",
                           .supports = supports_update,
                           .make = make_update,
                           .workspace_bytes = workspace_bytes});
  library.add(Op::UpdateNorms, {.name = "cuda.update_norms",
                                .supports = supports_update,
                                .make = make_update_norms,
                                .workspace_bytes = norms_workspace_bytes});
  add_cuda_global_norm(library);
}

}  // namespace lockstep
