#include "kernels/cases_softmax.h"

#include <algorithm>
#include <limits>

#include "kernels/evaluate.h"
#include "kernels/op_case_check.h"

namespace lockstep {
namespace {

LOCKSTEP_OP_CASES(Softmax, softmax_cases());

using Floats = std::vector<float>;
using Inputs = std::span<const Value>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

Floats probabilities(const Floats& logits) {
  return list<float>(evaluate({floats(logits)}, [](Inputs in) { return softmax(in[0]); }));
}

TEST(SoftmaxKernels, ProbabilitiesMatchDoublePrecision) {
  RandomSequence random(1, 2);
  Floats logits;
  for (int i = 0; i < 1000; ++i) logits.push_back(90 * random.uniform() - 80);
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x));
  const Floats y = probabilities(logits);
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double expected = std::exp(static_cast<double>(logits[i])) / sum;
    // x - largest is rounded, the sum has a thousand terms in f32, and subnormals become zero.
    const double rounded = 6e-8 * static_cast<double>(largest - logits[i]);
    ASSERT_NEAR(static_cast<double>(y[i]), expected, (2e-6 + rounded) * expected + 1.2e-38);
  }
}

TEST(SoftmaxKernels, HugeLogitsNeitherOverflowNorVanish) {
  EXPECT_EQ(probabilities({1e30f, 1e30f}), (Floats{0.5f, 0.5f}));
  EXPECT_EQ(probabilities({-1e30f, -1e30f}), (Floats{0.5f, 0.5f}));
  EXPECT_EQ(probabilities({1e30f, -1e30f}), (Floats{1, 0}));
  EXPECT_EQ(probabilities({0, -kInfinity}), (Floats{1, 0}));
}

TEST(SoftmaxKernels, NaNIsKept) {
  for (const float y : probabilities({1, std::numeric_limits<float>::quiet_NaN(), 2})) {
    EXPECT_TRUE(std::isnan(y));
  }
}

Tensor losses(const Floats& logits, Shape shape, const std::vector<std::int64_t>& labels,
              const KernelLibrary& library) {
  const auto count = static_cast<std::int64_t>(labels.size());
  return evaluate(
      {floats(logits, std::move(shape)), Tensor::of(labels, Shape{count})},
      [](Inputs in) {
        const Graph::NameScope scope(in[0].graph(), "loss");
        return sparse_cross_entropy(in[0], in[1]);
      },
      library);
}

TEST(SoftmaxKernels, ALossOfHugeLogitsIsExact) {
  const Tensor loss = losses({1000, 0, -1000, 0, 1000, -1000}, {2, 3}, {0, 2}, reference_kernels());
  EXPECT_EQ(list<float>(loss), (Floats{0, 2000}));
}

TEST(SoftmaxKernels, ALabelOutsideTheClassesIsADataErrorThatNamesIt) {
  for (const KernelLibrary* library : {&reference_kernels(), &cpu_kernels()}) {
    for (const std::int64_t label : {std::int64_t{3}, std::int64_t{-1}}) {
      try {
        losses({1, 2, 3, 4, 5, 6}, {2, 3}, {0, label}, *library);
        FAIL() << "accepted " << label;
      } catch (const DataError& error) {
        const std::string message = error.what();
        EXPECT_NE(message.find(fmt::format("label {} in row 1 is outside [0, 3)", label)),
                  std::string::npos)
            << message;
        EXPECT_NE(message.find("loss"), std::string::npos) << message;
      }
    }
  }
}

TEST(SoftmaxKernels, DenseLabelsOfOneClassGiveTheSparseLoss) {
  const Floats logits{0.5f, -1, 2, 1, 1, -3};
  const Tensor sparse = losses(logits, {2, 3}, {2, 0}, reference_kernels());
  const Tensor dense = evaluate({floats(logits, {2, 3}), floats({0, 0, 1, 1, 0, 0}, {2, 3})},
                                [](Inputs in) { return cross_entropy(in[0], in[1]); });
  EXPECT_LT(relative_error(dense, sparse), 1e-6);
}

TEST(SoftmaxKernels, AClassWithZeroWeightMayHaveProbabilityZero) {
  const Tensor loss = evaluate({floats({0, -kInfinity}, {1, 2}), floats({1, 0}, {1, 2})},
                               [](Inputs in) { return cross_entropy(in[0], in[1]); });
  EXPECT_EQ(list<float>(loss), (Floats{0}));
}

TEST(SoftmaxKernels, MismatchedLabelsAreRefused) {
  Graph graph;
  const Value logits = graph.input("logits", {DType::F32, {4, 10}});
  const Value labels = graph.input("labels", {DType::I64, {4, 1}});
  const Value real = graph.input("real", {DType::F32, {4}});
  EXPECT_THROW(sparse_cross_entropy(logits, labels), UsageError);
  EXPECT_THROW(sparse_cross_entropy(logits, real), UsageError);
  EXPECT_THROW(cross_entropy(logits, real), UsageError);
}

}  // namespace
}  // namespace lockstep
