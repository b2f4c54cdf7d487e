// Ops that change variables: assignment, and the update of all parameters of a model. Parameters
// that are adjacent in memory, together with their gradients and slots, are updated as one range.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/graph/ops/update.h"
#include "lockstep/kernels/reference/floating.h"
#include "lockstep/kernels/reference/reference.h"
#include "lockstep/kernels/reference/update_loops.h"

namespace lockstep {
namespace {

constexpr std::size_t kScalars = 3;           // inputs before the first parameter
constexpr std::int64_t kUpdateGrain = 16384;  // elements that are worth a thread
// Parameters of this size are not merged with their neighbours. Threads divide each of them in the
// same way as the matrix products with it (kernels/onednn/matmul.cpp).
constexpr std::int64_t kLargeParameter = 2 * kUpdateGrain;
constexpr std::int64_t kChunk = 4096;  // elements of one partial sum of a norm

LOCKSTEP_VECTORIZED void apply_rule(UpdateRule rule, const UpdateRange<float>& r,
                                    const UpdateScalars<float>& s) {
  update_rule(rule, r, s);
}

LOCKSTEP_VECTORIZED void apply_rule(UpdateRule rule, const UpdateRange<double>& r,
                                    const UpdateScalars<double>& s) {
  update_rule(rule, r, s);
}

LOCKSTEP_VECTORIZED void update_moments(const UpdateRange<float>& r,
                                        const UpdateScalars<float>& s) {
  update_lamb_moments(r, s);
}

LOCKSTEP_VECTORIZED void update_moments(const UpdateRange<double>& r,
                                        const UpdateScalars<double>& s) {
  update_lamb_moments(r, s);
}

LOCKSTEP_VECTORIZED double squares(NormOf what, const UpdateRange<float>& r,
                                   const UpdateScalars<float>& s) {
  return sum_of_squares(what, r, s);
}

LOCKSTEP_VECTORIZED double squares(NormOf what, const UpdateRange<double>& r,
                                   const UpdateScalars<double>& s) {
  return sum_of_squares(what, r, s);
}

std::int64_t chunks_of(std::int64_t count) {
  return (count + kChunk - 1) / kChunk;
}

// The sum of squares over a range. Partial sums of fixed chunks are added in order, so the result
// does not depend on the number of threads. `partial` has room for chunks_of(count) numbers.
template <class T>
double sum_in_chunks(NormOf what, const UpdateRange<T>& range, const UpdateScalars<T>& scalars,
                     double* partial) {
  const std::int64_t chunks = chunks_of(range.count);
  parallel_for(chunks, kUpdateGrain / kChunk, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = begin; chunk < end; ++chunk) {
      const std::int64_t first = chunk * kChunk;
      const std::int64_t last = std::min(first + kChunk, range.count);
      partial[chunk] = squares(what, range.piece(first, last), scalars);
    }
  });
  double sum = 0;
  for (std::int64_t chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk];
  return sum;
}

double real_or(const Attrs& attrs, std::string_view name, double otherwise) {
  return attrs.has(name) ? attrs.real(name) : otherwise;
}

bool flag_or_false(const Attrs& attrs, std::string_view name) {
  return attrs.has(name) && attrs.flag(name);
}

UpdateRule rule_of(const Attrs& attrs) {
  const std::string& rule = attrs.text("rule");
  if (rule == "sgd") return attrs.integer("slots") > 0 ? UpdateRule::SgdMomentum : UpdateRule::Sgd;
  if (rule == "adam" || rule == "adamw") return UpdateRule::Adam;
  if (rule == "rmsprop") return UpdateRule::RmsProp;
  if (rule == "adagrad") return UpdateRule::Adagrad;
  if (rule == "lars") return UpdateRule::Lars;
  if (rule == kAccumulateRule) return UpdateRule::Accumulate;
  ensure(rule == "lamb", "'{}' is not an update rule", rule);
  return UpdateRule::Lamb;
}

// A node's attributes, read once.
struct UpdateOptions {
  UpdateRule rule = UpdateRule::Sgd;
  double momentum, weight_decay, epsilon, beta_1, beta_2, rho, trust, clip_value, clip_norm;
  bool nesterov = false;
  bool trusted = false;  // the rate has the trust ratio

  explicit UpdateOptions(const Attrs& attrs)
      : rule(rule_of(attrs)),
        momentum(real_or(attrs, "momentum", 0)),
        weight_decay(real_or(attrs, "weight_decay", 0)),
        epsilon(real_or(attrs, "epsilon", 1e-7)),
        beta_1(real_or(attrs, "beta_1", 0.9)),
        beta_2(real_or(attrs, "beta_2", 0.999)),
        rho(real_or(attrs, "rho", 0.9)),
        trust(real_or(attrs, "trust", 0.001)),
        clip_value(real_or(attrs, "clip_value", std::numeric_limits<double>::infinity())),
        clip_norm(real_or(attrs, "clip_norm", 0)),
        nesterov(flag_or_false(attrs, "nesterov")),
        trusted(flag_or_false(attrs, kTrusted)) {}

  bool decays_inside() const { return rule == UpdateRule::Lars || rule == UpdateRule::Lamb; }
  // Whether each parameter's norm matters, so that adjacent parameters cannot be merged.
  bool by_parameter() const { return decays_inside() || clip_norm > 0; }
};

// By repeated squaring: the C library's pow has other last bits on other instruction sets, and
// ranks on different machines must update alike.
double power(double base, std::int64_t exponent) {
  double result = 1;
  for (double square = base; exponent > 0; exponent /= 2, square *= square) {
    if (exponent % 2 == 1) result *= square;
  }
  return result;
}

template <class T>
UpdateScalars<T> scalars_for(const UpdateOptions& o, double rate, double scale, std::int64_t t) {
  const double correct_1 = 1 - power(o.beta_1, t);
  const double correct_2 = 1 - power(o.beta_2, t);
  const bool rms = o.rule == UpdateRule::RmsProp;
  UpdateScalars<T> s;
  s.rate = static_cast<T>(rate);
  s.scale = static_cast<T>(scale);
  s.clip = static_cast<T>(o.clip_value);
  s.keep = static_cast<T>(o.decays_inside() ? 1.0 : 1.0 - rate * o.weight_decay);
  s.decay = static_cast<T>(o.weight_decay);
  s.epsilon = static_cast<T>(o.epsilon);
  s.momentum = static_cast<T>(o.momentum);
  s.beta_1 = static_cast<T>(rms ? o.rho : 1 - o.beta_1);
  s.beta_2 = static_cast<T>(rms ? 1 - o.rho : 1 - o.beta_2);
  s.step = static_cast<T>(rate * std::sqrt(correct_2) / correct_1);
  s.correct_1 = static_cast<T>(1 / correct_1);
  s.correct_2 = static_cast<T>(1 / correct_2);
  s.nesterov = o.nesterov;
  return s;
}

// Where the lists of an update's inputs are.
template <class T>
class UpdateLists {
 public:
  explicit UpdateLists(const KernelCall& call) {
    const auto count = static_cast<std::size_t>(call.attrs().integer("count"));
    slots_ = static_cast<std::size_t>(call.attrs().integer("slots"));
    for (std::size_t i = 0; i < count; ++i) {
      const ValueId id = call.node.inputs[kScalars + i];
      counts_.push_back(static_cast<std::int64_t>(call.graph.bytes(id) / sizeof(T)));
    }
    // The rule expects rmsprop's mean in slot 2, with or without momentum.
    const UpdateOptions options(call.attrs());
    const bool lone_mean = options.rule == UpdateRule::RmsProp && options.momentum <= 0;
    second_slot_ = lone_mean ? 2 : 1;
  }

  std::size_t count() const { return counts_.size(); }
  std::int64_t largest() const { return *std::ranges::max_element(counts_); }

  // Parameters and slots are inputs that an Update changes in place.
  UpdateRange<T> range(const Binding& binding, std::size_t i) const {
    const auto writable = [&](std::size_t list) {
      return const_cast<T*>(binding.in<T>(kScalars + list * count() + i));
    };
    UpdateRange<T> range{writable(0), writable(1), {}, counts_[i]};
    for (std::size_t slot = 0; slot < slots_; ++slot) {
      range.slots[slot == 1 ? second_slot_ : slot] = writable(2 + slot);
    }
    return range;
  }

 private:
  std::vector<std::int64_t> counts_;  // elements per parameter, including padding
  std::size_t slots_ = 0;
  std::size_t second_slot_ = 1;
};

template <class T>
class UpdateKernel final : public Kernel {
 public:
  explicit UpdateKernel(const KernelCall& call) : options_(call.attrs()), lists_(call) {}

  void bind(const Binding& binding) override {
    rate_ = binding.in<float>(0);
    scale_ = binding.in<float>(1);
    step_ = binding.in<std::int64_t>(2);
    ranges_.clear();
    for (std::size_t i = 0; i < lists_.count(); ++i) {
      const UpdateRange<T> range = lists_.range(binding, i);
      if (!ranges_.empty() && !options_.by_parameter() && adjacent(ranges_.back(), range) &&
          std::max(ranges_.back().count, range.count) < kLargeParameter) {
        ranges_.back().count += range.count;
      } else if (range.count > 0) {
        ranges_.push_back(range);
      }
    }
    partial_.resize(static_cast<std::size_t>(chunks_of(lists_.largest())));
  }

  void run(Stream&) override {
    if (*scale_ == 0.0F) return;  // an empty global batch, or a step to skip
    const UpdateScalars<T> scalars =
        scalars_for<T>(options_, static_cast<double>(*rate_), static_cast<double>(*scale_), *step_);
    for (const UpdateRange<T>& range : ranges_) update(range, scalars);
  }

 private:
  // Whether range b begins where a ends, for the parameter, the gradient and every slot.
  static bool adjacent(const UpdateRange<T>& a, const UpdateRange<T>& b) {
    bool result = a.parameter + a.count == b.parameter && a.gradient + a.count == b.gradient;
    for (std::size_t i = 0; i < a.slots.size(); ++i) {
      result = result && (a.slots[i] == nullptr || a.slots[i] + a.count == b.slots[i]);
    }
    return result;
  }

  double norm(NormOf what, const UpdateRange<T>& range, const UpdateScalars<T>& scalars) {
    return std::sqrt(sum_in_chunks(what, range, scalars, partial_.data()));
  }

  void update(const UpdateRange<T>& range, UpdateScalars<T> s) {
    if (options_.clip_norm > 0) {
      UpdateScalars<T> whole = s;
      whole.clip = std::numeric_limits<T>::infinity();
      const double size = norm(NormOf::Gradient, range, whole);
      if (size > options_.clip_norm) s.scale *= static_cast<T>(options_.clip_norm / size);
    }
    if (options_.trusted) s.step = s.rate;
    if (options_.rule == UpdateRule::Lars && !options_.trusted) {
      s.step = s.rate * lars_trust(range, s);
    }
    if (options_.rule == UpdateRule::Lamb) {
      in_pieces(range, [&](const UpdateRange<T>& piece) { update_moments(piece, s); });
      if (!options_.trusted) s.step = s.rate * lamb_trust(range, s);
    }
    in_pieces(range, [&](const UpdateRange<T>& piece) { apply_rule(options_.rule, piece, s); });
  }

  T lars_trust(const UpdateRange<T>& range, const UpdateScalars<T>& s) {
    const double p = norm(NormOf::Parameter, range, s);
    const double g = norm(NormOf::Gradient, range, s);
    if (p == 0 || g == 0) return T(1);
    return static_cast<T>(options_.trust * p / (g + options_.weight_decay * p + options_.epsilon));
  }

  T lamb_trust(const UpdateRange<T>& range, const UpdateScalars<T>& s) {
    const double p = norm(NormOf::Parameter, range, s);
    const double u = norm(NormOf::LambDirection, range, s);
    return p == 0 || u == 0 ? T(1) : static_cast<T>(p / u);
  }

  template <class F>
  void in_pieces(const UpdateRange<T>& range, F&& f) {
    parallel_for(range.count, kUpdateGrain,
                 [&](std::int64_t begin, std::int64_t end) { f(range.piece(begin, end)); });
  }

  UpdateOptions options_;
  UpdateLists<T> lists_;
  std::vector<UpdateRange<T>> ranges_;
  std::vector<double> partial_;
  const float* rate_ = nullptr;
  const float* scale_ = nullptr;
  const std::int64_t* step_ = nullptr;
};

// Any layout, if a parameter, its gradient and its slots have the same: padding is zero in all of
// them, and every rule keeps it zero.
bool supports_update(const KernelCall& call) {
  const auto count = static_cast<std::size_t>(call.attrs().integer("count"));
  if (!is_f32_or_f64(call.in_dtype(kScalars))) return false;
  for (std::size_t i = kScalars; i < call.in_count(); ++i) {
    const std::size_t parameter = kScalars + (i - kScalars) % count;
    if (call.input(i).layout != call.input(parameter).layout) return false;
  }
  return true;
}

std::unique_ptr<Kernel> make_update(const KernelCall& call) {
  if (call.in_dtype(kScalars) == DType::F64) return std::make_unique<UpdateKernel<double>>(call);
  return std::make_unique<UpdateKernel<float>>(call);
}

template <class T>
class UpdateNormsKernel final : public Kernel {
 public:
  explicit UpdateNormsKernel(const KernelCall& call)
      : options_(call.attrs()), lists_(call), of_(update_norm_of(call.attrs())) {}

  void bind(const Binding& binding) override {
    rate_ = binding.in<float>(0);
    scale_ = binding.in<float>(1);
    step_ = binding.in<std::int64_t>(2);
    ranges_.clear();
    results_.clear();
    for (std::size_t i = 0; i < lists_.count(); ++i) ranges_.push_back(lists_.range(binding, i));
    for (std::size_t i = 0; i < binding.outputs.size(); ++i) {
      results_.push_back(binding.out<float>(i));
    }
    partial_.resize(static_cast<std::size_t>(chunks_of(lists_.largest())));
  }

  void run(Stream&) override {
    UpdateScalars<T> scalars =
        scalars_for<T>(options_, static_cast<double>(*rate_), static_cast<double>(*scale_), *step_);
    const bool lamb = options_.rule == UpdateRule::Lamb;
    if (of_ == UpdateNorm::Gradients) scalars.clip = std::numeric_limits<T>::infinity();
    for (std::size_t i = 0; i < ranges_.size(); ++i) {
      if (of_ == UpdateNorm::Gradients) {
        *results_[i] = norm(NormOf::Gradient, ranges_[i], scalars);
        continue;
      }
      *results_[i] = norm(NormOf::Parameter, ranges_[i], scalars);
      *results_[ranges_.size() + i] =
          norm(lamb ? NormOf::NextLambDirection : NormOf::Gradient, ranges_[i], scalars);
    }
  }

 private:
  float norm(NormOf what, const UpdateRange<T>& range, const UpdateScalars<T>& scalars) {
    return static_cast<float>(std::sqrt(sum_in_chunks(what, range, scalars, partial_.data())));
  }

  UpdateOptions options_;
  UpdateLists<T> lists_;
  UpdateNorm of_;
  std::vector<UpdateRange<T>> ranges_;
  std::vector<float*> results_;
  std::vector<double> partial_;
  const float* rate_ = nullptr;
  const float* scale_ = nullptr;
  const std::int64_t* step_ = nullptr;
};

std::unique_ptr<Kernel> make_update_norms(const KernelCall& call) {
  if (call.in_dtype(kScalars) == DType::F64) {
    return std::make_unique<UpdateNormsKernel<double>>(call);
  }
  return std::make_unique<UpdateNormsKernel<float>>(call);
}

template <class T>
class GlobalNormKernel final : public Kernel {
 public:
  explicit GlobalNormKernel(const KernelCall& call) {
    for (const ValueId id : call.node.inputs) {
      counts_.push_back(static_cast<std::int64_t>(call.graph.bytes(id) / sizeof(T)));
    }
  }

  void bind(const Binding& binding) override {
    result_ = binding.out<float>(0);
    ranges_.clear();
    std::int64_t largest = 0;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      // One range per gradient, even if adjacent: the order of addition must not depend on that.
      ranges_.push_back({nullptr, binding.in<T>(i), {}, counts_[i]});
      largest = std::max(largest, counts_[i]);
    }
    partial_.resize(static_cast<std::size_t>(chunks_of(largest)));
  }

  void run(Stream&) override {
    const UpdateScalars<T> as_they_are;
    double sum = 0;
    for (const UpdateRange<T>& range : ranges_) {
      sum += sum_in_chunks(NormOf::Gradient, range, as_they_are, partial_.data());
    }
    *result_ = static_cast<float>(std::sqrt(sum));
  }

 private:
  std::vector<std::int64_t> counts_;
  std::vector<UpdateRange<T>> ranges_;
  std::vector<double> partial_;
  float* result_ = nullptr;
};

// The gradients keep their layouts: padding is zero and adds nothing.
NodeLayouts any_layouts(const KernelCall& call) {
  NodeLayouts wish{{}, std::vector<Layout>(1)};
  for (std::size_t i = 0; i < call.in_count(); ++i) wish.inputs.push_back(call.input(i).layout);
  return wish;
}

std::unique_ptr<Kernel> make_global_norm(const KernelCall& call) {
  if (call.in_dtype(0) == DType::F64) return std::make_unique<GlobalNormKernel<double>>(call);
  return std::make_unique<GlobalNormKernel<float>>(call);
}

std::unique_ptr<Kernel> make_assign(const KernelCall& call) {
  return make_kernel([bytes = call.graph.bytes(call.node.inputs[0])](const Binding& binding) {
    std::byte* variable = const_cast<std::byte*>(binding.inputs[0]);
    if (bytes > 0 && variable != binding.inputs[1]) {
      std::memcpy(variable, binding.inputs[1], bytes);
    }
  });
}

}  // namespace

void add_reference_update(KernelLibrary& library) {
  library.add(Op::Assign, {.name = "reference.assign",
                           .supports =
                               [](const KernelCall& call) {
                                 return call.input(0).layout == call.input(1).layout;
                               },
                           .make = make_assign});
  library.add(Op::Update,
              {.name = "reference.update", .supports = supports_update, .make = make_update});
  library.add(
      Op::UpdateNorms,
      {.name = "reference.update_norms", .supports = supports_update, .make = make_update_norms});
  library.add(Op::GlobalNorm,
              {.name = "reference.global_norm",
               .supports = [](const KernelCall& call) { return is_f32_or_f64(call.in_dtype(0)); },
               .make = make_global_norm,
               .layouts = any_layouts});
}

}  // namespace lockstep
