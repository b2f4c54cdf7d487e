// The checks of every op case: the CPU's kernels agree with the reference, and gradient rules with
// central differences in double.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "kernels/op_case.h"

namespace lockstep {

// |a - b| / max(|b|, floor) over all elements of floating tensors of the same dtype and shape.
inline double relative_error(const Tensor& a, const Tensor& b, double floor = 1e-6) {
  double difference = 0;
  double size = 0;
  dispatch(a.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const auto x = a.values<T>();
    const auto y = b.values<T>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double p = static_cast<double>(x[i]);
      const double q = static_cast<double>(y[i]);
      if (p == q && std::isinf(p)) continue;
      difference += (p - q) * (p - q);
      size += q * q;
    }
  });
  return std::sqrt(difference) / std::max(std::sqrt(size), floor);
}

// Compares the results of two runs of a case: floats within a tolerance, others bit for bit.
inline void expect_close(const CaseRun& run, const CaseRun& reference, double tolerance,
                         std::optional<double> gradient_tolerance = {}) {
  const auto expected = reference.results();
  const auto actual = run.results();
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const auto& [name, want] = expected[i];
    const auto& [same_name, have] = actual[i];
    ASSERT_EQ(name, same_name);
    ASSERT_EQ(want.dtype(), have.dtype()) << name;
    ASSERT_EQ(want.shape(), have.shape()) << name;
    if (is_floating(want.dtype())) {
      const bool gradient = name.starts_with("d");
      EXPECT_LE(relative_error(have, want),
                gradient ? gradient_tolerance.value_or(tolerance) : tolerance)
          << name;
    } else {
      EXPECT_TRUE(have.same_bits(want)) << name;
    }
  }
}

inline void expect_agreement(const OpCase& op_case, const KernelLibrary& library = cpu_kernels(),
                             Device& device = host()) {
  CaseRun reference(op_case, build_graph(op_case, DType::F32).graph, reference_kernels());
  CaseRun run(op_case, build_graph(op_case, DType::F32).graph, library, device);
  reference.run();
  run.run();
  expect_close(run, reference, op_case.tolerance);
}

// The largest relative error of rounding to a 16-bit type.
inline double unit_roundoff(DType dtype) {
  return dtype == DType::F16 ? 0x1p-11 : 0x1p-8;
}

// Expects a library's kernels in mixed precision to agree with the CPU's in f32 for the same
// (rounded) inputs.
inline void expect_agreement_in(const OpCase& op_case, DType dtype, const KernelLibrary& library,
                                Device& device = host()) {
  CaseRun whole(op_case, build_graph(op_case, DType::F32).graph, cpu_kernels());
  CaseRun small(op_case, build_mixed_graph(op_case, dtype), library, device);
  round_inputs(whole.executor(), dtype);
  round_inputs(small.executor(), dtype);
  whole.run();
  small.run();
  const double tolerance = op_case.small_roundings * unit_roundoff(dtype);
  expect_close(small, whole, tolerance, op_case.turns_signs ? 5e-2 : tolerance);
}

// sum((after - before) * weights) over the floating outputs of a case.
inline double weighted_change(const CaseRun& run, Executor& executor,
                              const std::vector<std::pair<std::string, Tensor>>& before) {
  const auto after = run.results();
  double change = 0;
  for (std::size_t i = 0; i < after.size(); ++i) {
    const auto& [name, tensor] = after[i];
    if (!name.starts_with("y") || tensor.dtype() != DType::F64) continue;
    const Tensor weights = executor.input(fmt::format("w{}", name.substr(1)));
    const auto x = before[i].second.values<double>();
    const auto y = tensor.values<double>();
    const auto w = weights.values<double>();
    for (std::size_t k = 0; k < y.size(); ++k) change += (y[k] - x[k]) * w[k];
  }
  return change;
}

inline void expect_gradients(const OpCase& op_case) {
  constexpr double kStep = 1e-5;
  constexpr std::size_t kMostElements = 40;
  CaseGraph case_graph = build_graph(op_case, DType::F64);
  CaseRun run(op_case, std::move(case_graph.graph), reference_kernels());
  Executor& executor = run.executor();
  run.run();
  std::vector<Tensor> grads;
  for (const std::string& name : case_graph.differentiated) {
    grads.push_back(executor.output(fmt::format("d{}", name)).clone());
  }
  for (std::size_t g = 0; g < grads.size(); ++g) {
    Tensor input = executor.input(case_graph.differentiated[g]);
    ASSERT_EQ(grads[g].shape(), input.shape()) << case_graph.differentiated[g];
    const auto x = input.values<double>();
    const auto dx = grads[g].values<double>();
    RandomSequence random(hash_name(op_case.name), 1000 + g);
    double difference = 0;
    double size = 0;
    for (std::size_t n = 0; n < std::min(x.size(), kMostElements); ++n) {
      const std::size_t i = x.size() <= kMostElements ? n : random.below(x.size());
      const double kept = x[i];
      x[i] = kept - kStep;
      run.run();
      const auto below = run.results();
      x[i] = kept + kStep;
      run.run();
      const double slope = weighted_change(run, executor, below) / (2 * kStep);
      x[i] = kept;
      difference += (slope - dx[i]) * (slope - dx[i]);
      size += slope * slope;
    }
    EXPECT_LE(std::sqrt(difference), op_case.grad_tolerance * (std::sqrt(size) + 1e-3))
        << "gradient of " << case_graph.differentiated[g] << ", of norm " << std::sqrt(size);
  }
}

inline std::string case_name(const ::testing::TestParamInfo<OpCase>& info) {
  return info.param.name;
}

// Makes a failing case print its name instead of its bytes.
inline void PrintTo(const OpCase& op_case, std::ostream* out) {
  *out << op_case.name;
}

}  // namespace lockstep

// Defines the tests of a family, once: LOCKSTEP_OP_CASES(MatMul, matmul_cases()).
#define LOCKSTEP_OP_CASES(Family, cases)                                      \
  class Family##Cases : public ::testing::TestWithParam<lockstep::OpCase> {}; \
  TEST_P(Family##Cases, CpuKernelsAgreeWithTheReference) {                    \
    lockstep::expect_agreement(GetParam());                                   \
  }                                                                           \
  TEST_P(Family##Cases, SixteenBitsAgreeWithF32) {                            \
    using lockstep::DType;                                                    \
    for (const DType dtype : {DType::F16, DType::BF16}) {                     \
      SCOPED_TRACE(lockstep::name_of(dtype));                                 \
      expect_agreement_in(GetParam(), dtype, lockstep::cpu_kernels());        \
      if (GetParam().timed) continue;                                         \
      expect_agreement_in(GetParam(), dtype, lockstep::reference_kernels());  \
    }                                                                         \
  }                                                                           \
  TEST_P(Family##Cases, GradientsMatchFiniteDifferences) {                    \
    if (GetParam().differentiable && !GetParam().timed) {                     \
      lockstep::expect_gradients(GetParam());                                 \
    }                                                                         \
  }                                                                           \
  INSTANTIATE_TEST_SUITE_P(All, Family##Cases, ::testing::ValuesIn(cases), lockstep::case_name)
