// RoundGradients: one pass that reads gradients and errors and writes rounded gradients and new
// errors.
#include "lockstep/graph/ops/error_feedback.h"

#include <cmath>
#include <limits>

#include "lockstep/base/half.h"
#include "lockstep/base/vectorized.h"
#include "lockstep/device/cpu/parallel.h"
#include "lockstep/kernels/reference/reference.h"

namespace lockstep {
namespace {

constexpr std::int64_t kElementsForAThread = 16384;

struct Rounding {
  const float* gradient = nullptr;
  float* error = nullptr;
  std::uint16_t* rounded = nullptr;
  std::int64_t count = 0;  // with padding, which is zero and stays so
};

struct RoundScalars {
  float unit = 0;     // of the errors that are read; 0: none are
  float inverse = 0;  // of the unit of those that are written
  bool writes = false;
};

template <class Format>
LOCKSTEP_INLINE void round_range(const Rounding& r, std::int64_t begin, std::int64_t end,
                                 const RoundScalars& s) {
  constexpr float kMost = std::numeric_limits<float>::max();
  if (s.unit == 0.0F) {  // whatever the errors hold
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) r.rounded[i] = Format::round(r.gradient[i]);
    if (!s.writes) return;
#pragma omp simd
    for (std::int64_t i = begin; i < end; ++i) {
      const float lost = (r.gradient[i] - Format::widen(r.rounded[i])) * s.inverse;
      r.error[i] = std::abs(lost) <= kMost ? lost : 0.0F;
    }
    return;
  }
#pragma omp simd
  for (std::int64_t i = begin; i < end; ++i) {
    const float sum = r.gradient[i] + r.error[i] * s.unit;
    const std::uint16_t rounded = Format::round(sum);
    const float lost = (sum - Format::widen(rounded)) * s.inverse;
    r.rounded[i] = rounded;
    r.error[i] = std::abs(lost) <= kMost ? lost : 0.0F;
  }
}

LOCKSTEP_VECTORIZED void round_f16(const Rounding& r, std::int64_t begin, std::int64_t end,
                                   const RoundScalars& s) {
  round_range<F16Format>(r, begin, end, s);
}

LOCKSTEP_VECTORIZED void round_bf16(const Rounding& r, std::int64_t begin, std::int64_t end,
                                    const RoundScalars& s) {
  round_range<BF16Format>(r, begin, end, s);
}

class RoundKernel final : public Kernel {
 public:
  explicit RoundKernel(const KernelCall& call)
      : round_(call.output(0).type.dtype == DType::F16 ? round_f16 : round_bf16) {
    for (const ValueId id : call.node.outputs) {
      counts_.push_back(static_cast<std::int64_t>(call.graph.bytes(id) / sizeof(std::uint16_t)));
    }
  }

  void bind(const Binding& binding) override {
    unit_ = binding.in<float>(0);
    keep_ = binding.in<float>(1);
    values_.clear();
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      const std::size_t error = kRoundScalars + counts_.size() + i;
      values_.push_back({.gradient = binding.in<float>(kRoundScalars + i),
                         .error = const_cast<float*>(binding.in<float>(error)),
                         .rounded = binding.out<std::uint16_t>(i),
                         .count = counts_[i]});
    }
  }

  void run(Stream&) override {
    const bool writes = *unit_ > 0.0F;
    const RoundScalars scalars{.unit = writes && *keep_ != 0.0F ? *unit_ : 0.0F,
                               .inverse = writes ? 1.0F / *unit_ : 0.0F,
                               .writes = writes};
    for (const Rounding& value : values_) {
      parallel_for(value.count, kElementsForAThread, [&](std::int64_t begin, std::int64_t end) {
        round_(value, begin, end, scalars);
      });
    }
  }

 private:
  void (*round_)(const Rounding&, std::int64_t, std::int64_t, const RoundScalars&);
  std::vector<std::int64_t> counts_;
  std::vector<Rounding> values_;
  const float* unit_ = nullptr;
  const float* keep_ = nullptr;
};

// Any layout, if a gradient, its error and the rounded gradient have the same.
bool supports_rounding(const KernelCall& call) {
  const std::size_t count = call.node.outputs.size();
  for (std::size_t i = 0; i < count; ++i) {
    const Layout& layout = call.output(i).layout;
    if (call.input(kRoundScalars + i).layout != layout) return false;
    if (call.input(kRoundScalars + count + i).layout != layout) return false;
  }
  return true;
}

std::unique_ptr<Kernel> make_rounding(const KernelCall& call) {
  return std::make_unique<RoundKernel>(call);
}

}  // namespace

void add_reference_error_feedback(KernelLibrary& library) {
  library.add(
      Op::RoundGradients,
      {.name = "reference.round_gradients", .supports = supports_rounding, .make = make_rounding});
}

}  // namespace lockstep
