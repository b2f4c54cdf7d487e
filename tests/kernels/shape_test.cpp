#include <numeric>

#include "kernels/cases_shape.h"
#include "kernels/evaluate.h"
#include "kernels/op_case_check.h"

namespace lockstep {
namespace {

LOCKSTEP_OP_CASES(Shape, shape_cases());

using Floats = std::vector<float>;
using Inputs = std::span<const Value>;

// 0, 1, 2, …
Tensor counted(Shape shape) {
  Floats values(static_cast<std::size_t>(shape.elements()));
  std::iota(values.begin(), values.end(), 0.0f);
  return floats(values, std::move(shape));
}

TEST(ShapeKernels, TransposeFollowsEveryPermutation) {
  const Shape shape{2, 3, 4, 5};
  const Tensor x = counted(shape);
  Ints permutation = {0, 1, 2, 3};
  do {
    const Tensor y = evaluate({x}, [&](Inputs in) { return transpose(in[0], permutation); });
    const auto from = shape.strides();
    const auto to = y.shape().strides();
    for (std::int64_t i = 0; i < y.elements(); ++i) {
      std::int64_t source = 0;
      for (std::size_t axis = 0; axis < 4; ++axis) {
        const std::int64_t index = i / to[axis] % y.shape()[static_cast<int>(axis)];
        source += index * from[static_cast<std::size_t>(permutation[axis])];
      }
      ASSERT_EQ(y.values<float>()[static_cast<std::size_t>(i)], static_cast<float>(source))
          << "permutation " << fmt::format("{}", fmt::join(permutation, ","));
    }
  } while (std::next_permutation(permutation.begin(), permutation.end()));
}

TEST(ShapeKernels, SplitReversesConcat) {
  const Tensor a = counted({2, 1});
  const Tensor b = floats({10, 11, 12, 13}, {2, 2});
  const auto y = evaluate_all({a, b}, [](Inputs in) {
    const Value whole = concat(in, 1);
    const std::vector<Value> parts = split(whole, {2, 1}, 1);
    return std::vector<Value>{whole, parts[0], parts[1]};
  });
  EXPECT_EQ(list<float>(y[0]), (Floats{0, 10, 11, 1, 12, 13}));
  EXPECT_EQ(list<float>(y[1]), (Floats{0, 10, 1, 12}));
  EXPECT_EQ(list<float>(y[2]), (Floats{11, 13}));
}

TEST(ShapeKernels, SliceAndPadFollowTheirDefinitions) {
  const auto y = evaluate_all({counted({3, 3})}, [](Inputs in) {
    const Value middle = slice(in[0], {1, 1}, {1, -1});
    return std::vector<Value>{middle, pad(middle, {1, 0}, {0, 1}, 9)};
  });
  EXPECT_EQ(list<float>(y[0]), (Floats{4, 5}));
  EXPECT_EQ(list<float>(y[1]), (Floats{9, 9, 9, 4, 5, 9}));
}

TEST(ShapeKernels, BroadcastToRepeats) {
  const Tensor y = evaluate({counted({2, 1})}, [](Inputs in) {
    return broadcast_to(in[0], Shape{2, 2, 2});
  });
  EXPECT_EQ(list<float>(y), (Floats{0, 0, 1, 1, 0, 0, 1, 1}));
}

TEST(ShapeKernels, OneHotOfAClassOutOfRangeIsAllZeros) {
  const Tensor classes = Tensor::of(std::vector<std::int64_t>{1, -1, 3}, Shape{3});
  const Tensor y = evaluate({classes}, [](Inputs in) { return one_hot(in[0], 3); });
  EXPECT_EQ(list<float>(y), (Floats{0, 1, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(ShapeKernels, GatherTakesRowsAndItsGradientAddsThemUp) {
  const Tensor indices = Tensor::of(std::vector<std::int32_t>{2, 0, 2}, Shape{3});
  const auto y = evaluate_all({counted({3, 2}), indices}, [](Inputs in) {
    const Value rows = gather(in[0], in[1]);
    return std::vector<Value>{rows, gather_grad(rows, in[1], 3)};
  });
  EXPECT_EQ(list<float>(y[0]), (Floats{4, 5, 0, 1, 4, 5}));
  EXPECT_EQ(list<float>(y[1]), (Floats{0, 1, 0, 0, 8, 10}));
}

TEST(ShapeKernels, GatherOutsideTheTableNamesTheIndexAndTheTable) {
  for (std::int64_t index : {-1, 7}) {
    const Tensor indices = Tensor::of(std::vector<std::int64_t>{0, index}, Shape{2});
    try {
      evaluate({counted({7, 2}), indices}, [](Inputs in) { return gather(in[0], in[1]); });
      FAIL() << "an index outside the table went unnoticed";
    } catch (const DataError& error) {
      const std::string message = error.what();
      EXPECT_NE(message.find(fmt::format("index {}", index)), std::string::npos) << message;
      EXPECT_NE(message.find("7 rows"), std::string::npos) << message;
    }
  }
}

}  // namespace
}  // namespace lockstep
