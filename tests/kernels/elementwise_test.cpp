#include <limits>

#include "kernels/cases_elementwise.h"
#include "kernels/evaluate.h"
#include "kernels/op_case_check.h"

namespace lockstep {
namespace {

LOCKSTEP_OP_CASES(Elementwise, elementwise_cases());

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Floats = std::vector<float>;
using Inputs = std::span<const Value>;

// The results of a binary op on f32 lists.
Floats results(Value (*op)(Value, Value), Floats a, Floats b) {
  return list<float>(evaluate({floats(a), floats(b)}, [&](Inputs in) { return op(in[0], in[1]); }));
}

Floats results(const std::function<Value(Value)>& op, Floats x) {
  return list<float>(evaluate({floats(x)}, [&](Inputs in) { return op(in[0]); }));
}

std::vector<bool> truths(Value (*op)(Value, Value), Floats a, Floats b) {
  const Tensor y = evaluate({floats(a), floats(b)}, [&](Inputs in) { return op(in[0], in[1]); });
  const auto values = y.values<bool>();
  return {values.begin(), values.end()};
}

TEST(ElementwiseKernels, ArithmeticMatchesC) {
  EXPECT_EQ(results(add, {1, 2}, {10, 20}), (Floats{11, 22}));
  EXPECT_EQ(results(sub, {1, 2}, {10, 20}), (Floats{-9, -18}));
  EXPECT_EQ(results(mul, {3, 2}, {10, 20}), (Floats{30, 40}));
  EXPECT_EQ(results(div, {3, 1}, {2, 0}), (Floats{1.5f, kInfinity}));
  EXPECT_EQ(results(pow, {3, 2}, {2, -1}), (Floats{9, 0.5f}));
  EXPECT_EQ(results(maximum, {3, 2}, {2, 5}), (Floats{3, 5}));
  EXPECT_EQ(results(minimum, {3, 2}, {2, 5}), (Floats{2, 2}));
}

TEST(ElementwiseKernels, UnaryFunctionsMatchC) {
  EXPECT_EQ(results(neg, {1, -2}), (Floats{-1, 2}));
  EXPECT_EQ(results(abs, {1, -2}), (Floats{1, 2}));
  EXPECT_EQ(results(sign, {3, -2, 0}), (Floats{1, -1, 0}));
  EXPECT_EQ(results(square, {3, -2}), (Floats{9, 4}));
  EXPECT_EQ(results(sqrt, {9, 0}), (Floats{3, 0}));
  EXPECT_EQ(results(rsqrt, {4, 1}), (Floats{0.5f, 1}));
  EXPECT_FLOAT_EQ(results(exp, {1.5f})[0], std::exp(1.5f));
  EXPECT_FLOAT_EQ(results(log, {1.5f})[0], std::log(1.5f));
}

TEST(ElementwiseKernels, ComparisonsGiveBool) {
  const Floats a = {1, 2, 3};
  const Floats b = {2, 2, 2};
  EXPECT_EQ(truths(equal, a, b), (std::vector<bool>{false, true, false}));
  EXPECT_EQ(truths(not_equal, a, b), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(truths(less, a, b), (std::vector<bool>{true, false, false}));
  EXPECT_EQ(truths(less_equal, a, b), (std::vector<bool>{true, true, false}));
  EXPECT_EQ(truths(greater, a, b), (std::vector<bool>{false, false, true}));
  EXPECT_EQ(truths(greater_equal, a, b), (std::vector<bool>{false, true, true}));
}

TEST(ElementwiseKernels, LogicalOpsWorkOnBools) {
  const Tensor a = Tensor::of(std::vector<std::uint8_t>{0, 0, 1, 1}, Shape{4});
  const Tensor b = Tensor::of(std::vector<std::uint8_t>{0, 1, 0, 1}, Shape{4});
  const auto y = evaluate_all({a, b}, [](Inputs in) {
    const Value p = cast(in[0], DType::Bool);
    const Value q = cast(in[1], DType::Bool);
    return std::vector<Value>{cast(logical_and(p, q), DType::I32),
                              cast(logical_or(p, q), DType::I32), cast(logical_not(p), DType::I32)};
  });
  using Bits = std::vector<std::int32_t>;
  EXPECT_EQ(list<std::int32_t>(y[0]), (Bits{0, 0, 0, 1}));
  EXPECT_EQ(list<std::int32_t>(y[1]), (Bits{0, 1, 1, 1}));
  EXPECT_EQ(list<std::int32_t>(y[2]), (Bits{1, 1, 0, 0}));
}

TEST(ElementwiseKernels, BroadcastingRepeatsTheSmallerSide) {
  const Tensor column = floats({10, 20}, {2, 1});
  const Tensor row = floats({1, 2, 3}, {1, 3});
  const Tensor sum = evaluate({column, row}, [](Inputs in) { return in[0] + in[1]; });
  EXPECT_EQ(sum.shape(), (Shape{2, 3}));
  EXPECT_EQ(list<float>(sum), (Floats{11, 12, 13, 21, 22, 23}));
}

TEST(ElementwiseKernels, ActivationsMatchTheirDefinitions) {
  const auto one = [](const char* kind, float x) {
    return results([&](Value v) { return activation(v, kind, 0.25); }, {x})[0];
  };
  EXPECT_EQ(one("relu", -2), 0);
  EXPECT_EQ(one("relu", 2), 2);
  EXPECT_EQ(one("relu6", 7), 6);
  EXPECT_EQ(one("leaky_relu", -2), -0.5f);
  EXPECT_NEAR(one("gelu", 1), 0.841345f, 1e-6);
  EXPECT_NEAR(one("gelu_tanh", 1), 0.841192f, 1e-6);
  EXPECT_NEAR(one("silu", 1), 0.731059f, 1e-6);
  EXPECT_NEAR(one("tanh", 1), 0.761594f, 1e-6);
  EXPECT_NEAR(one("sigmoid", 1), 0.731059f, 1e-6);
  EXPECT_NEAR(one("softplus", 1), 1.313262f, 1e-6);
}

TEST(ElementwiseKernels, ActivationsAndTheirGradientsStayFinite) {
  for (const char* kind : {"relu", "relu6", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh",
                           "sigmoid", "softplus"}) {
    const auto y = evaluate_all({floats({-1e30f, -100, -20, 20, 100, 1e30f})}, [&](Inputs in) {
      const Value value = activation(in[0], kind);
      return std::vector<Value>{value, gradients(value, in)[0]};
    });
    for (const Tensor& tensor : y) {
      for (float element : tensor.values<float>()) {
        EXPECT_TRUE(std::isfinite(element)) << kind << " gives " << element;
      }
    }
    EXPECT_EQ(y[1].values<float>()[0], kind == std::string("leaky_relu") ? 0.2f : 0.0f) << kind;
  }
}

TEST(ElementwiseKernels, NaNIsPropagated) {
  for (const char* kind : {"relu", "relu6", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh",
                           "sigmoid", "softplus"}) {
    EXPECT_TRUE(std::isnan(results([&](Value v) { return activation(v, kind); }, {kNan})[0]))
        << kind;
  }
  EXPECT_TRUE(std::isnan(results(maximum, {kNan}, {1})[0]));
  EXPECT_TRUE(std::isnan(results(maximum, {1}, {kNan})[0]));
  EXPECT_TRUE(std::isnan(results(minimum, {kNan}, {1})[0]));
  EXPECT_TRUE(std::isnan(results(minimum, {1}, {kNan})[0]));
  EXPECT_TRUE(std::isnan(results(sign, {kNan})[0]));
}

TEST(ElementwiseKernels, IntegersWrapAround) {
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  const Tensor x = Tensor::of(std::vector<std::int32_t>{most, -7}, Shape{2});
  const auto y = evaluate_all({x}, [](Inputs in) {
    return std::vector<Value>{add(in[0], in[0]), neg(in[0]), square(in[0])};
  });
  EXPECT_EQ(list<std::int32_t>(y[0]), (std::vector<std::int32_t>{-2, -14}));
  EXPECT_EQ(list<std::int32_t>(y[1]), (std::vector<std::int32_t>{-most, 7}));
  EXPECT_EQ(list<std::int32_t>(y[2]), (std::vector<std::int32_t>{1, 49}));
}

TEST(ElementwiseKernels, CastsConvertBetweenAllTypes) {
  for (DType from : {DType::F32, DType::F64, DType::I32, DType::I64, DType::U8, DType::Bool}) {
    for (DType to : {DType::F32, DType::F64, DType::I32, DType::I64, DType::U8, DType::Bool}) {
      const Tensor x = floats({0, 1, 1}).cast(from);
      const Tensor y = evaluate({x}, [&](Inputs in) { return cast(in[0], to); });
      EXPECT_TRUE(y.same_bits(floats({0, 1, 1}).cast(to))) << name_of(from) << name_of(to);
    }
  }
}

TEST(ElementwiseKernels, CastsOfValuesOutOfRangeAreDefined) {
  const Tensor y = evaluate({floats({-1e20f, 1e20f, kNan, -2.7f, 2.7f})},
                            [](Inputs in) { return cast(in[0], DType::I32); });
  EXPECT_EQ(list<std::int32_t>(y),
            (std::vector<std::int32_t>{std::numeric_limits<std::int32_t>::min(),
                                       std::numeric_limits<std::int32_t>::max(), 0, -2, 2}));
}

TEST(ElementwiseKernels, SelectFollowsTheCondition) {
  const Tensor y = evaluate({floats({1, 2, 3}), floats({9})}, [](Inputs in) {
    return select(less(in[0], in[0].graph().scalar(2.5)), in[0], in[1]);
  });
  EXPECT_EQ(list<float>(y), (Floats{1, 2, 9}));
}

}  // namespace
}  // namespace lockstep
