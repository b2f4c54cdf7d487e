#include "lockstep/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <sstream>

namespace lockstep {
namespace {

Tensor counted(Shape shape) {
  Tensor tensor(DType::F32, std::move(shape));
  float next = 0;
  for (float& element : tensor.values<float>()) element = next++;
  return tensor;
}

TEST(Tensor, StartsAsZeros) {
  const Tensor tensor(DType::I64, {3, 4});
  for (std::int64_t element : tensor.values<std::int64_t>()) EXPECT_EQ(element, 0);
  EXPECT_EQ(tensor.bytes(), 96u);
  EXPECT_FALSE(Tensor().defined());
}

TEST(Tensor, HoldsTheValuesItIsCreatedFrom) {
  const Tensor tensor = Tensor::of(std::vector<float>{1, 2, 3, 4}, Shape{2, 2});
  EXPECT_EQ(tensor.values<float>()[3], 4);
  EXPECT_EQ(Tensor::scalar(2.5).item(), 2.5);
  EXPECT_THROW(Tensor::of(std::vector<float>{1, 2, 3}, Shape{2, 2}), UsageError);
}

TEST(Tensor, RefusesToBeReadAsAnotherType) {
  Tensor tensor(DType::F32, {2});
  EXPECT_THROW(tensor.values<double>(), UsageError);
  EXPECT_THROW(Tensor().values<float>(), UsageError);
  EXPECT_THROW(tensor.item(), UsageError);
}

TEST(Tensor, CopiesShareMemoryAndClonesDoNot) {
  Tensor original = counted({4});
  Tensor copy = original;
  Tensor clone = original.clone();
  original.values<float>()[0] = 9;
  EXPECT_EQ(copy.values<float>()[0], 9);
  EXPECT_EQ(clone.values<float>()[0], 0);
}

TEST(Tensor, RowsAndReshapesAreViews) {
  Tensor tensor = counted({4, 3});
  Tensor rows = tensor.rows(1, 2);
  EXPECT_EQ(rows.shape(), (Shape{2, 3}));
  EXPECT_EQ(rows.values<float>()[0], 3);
  tensor.reshaped({12}).values<float>()[3] = 50;
  EXPECT_EQ(rows.values<float>()[0], 50);
  EXPECT_THROW(tensor.rows(3, 2), UsageError);
  EXPECT_THROW(tensor.rows(-1, 1), UsageError);
  EXPECT_THROW(tensor.reshaped({5}), UsageError);
}

TEST(Tensor, CanBeEmpty) {
  const Tensor empty(DType::F32, {0, 3});
  EXPECT_EQ(empty.elements(), 0);
  EXPECT_TRUE(empty.same_bits(empty.clone()));
  EXPECT_EQ(empty.rows(0, 0).shape(), (Shape{0, 3}));
}

TEST(Tensor, CastsConvertElements) {
  const Tensor x = Tensor::of(std::vector<float>{0, 1.75f, -2}, Shape{3});
  EXPECT_EQ(x.cast(DType::I32).values<std::int32_t>()[1], 1);
  EXPECT_EQ(x.cast(DType::F64).values<double>()[2], -2);
  EXPECT_TRUE(x.cast(DType::Bool).values<bool>()[1]);
  EXPECT_EQ(x.cast(DType::F32).raw(), x.raw());
}

TEST(Tensor, SixteenBitFloatsRoundAndComputeAsFloats) {
  const Tensor x = Tensor::of(std::vector<float>{1.0f, 2049.0f, 70000.0f}, Shape{3});
  const Tensor half = x.cast(DType::F16);
  EXPECT_EQ(half.values<Half>()[1], 2048.0f);
  EXPECT_TRUE(std::isinf(static_cast<float>(half.values<Half>()[2])));
  EXPECT_EQ(half.cast(DType::I32).values<std::int32_t>()[1], 2048);
  EXPECT_EQ(half.cast(DType::I32).values<std::int32_t>()[2], 2147483647);  // of infinity
  EXPECT_EQ(half.rows(0, 1).reshaped({}).item(), 1.0);
  const Tensor brain = x.cast(DType::BF16);
  EXPECT_EQ(brain.values<BFloat16>()[2], 70144.0f);
  EXPECT_EQ(brain.cast(DType::F64).values<double>()[2], 70144.0);
  EXPECT_EQ(Tensor::scalar(std::int64_t{3}).cast(DType::BF16).item(), 3.0);
}

TEST(Tensor, CopyFromRequiresTheSameTypeAndShape) {
  Tensor target(DType::F32, {2, 2});
  target.copy_from(counted({2, 2}));
  EXPECT_EQ(target.values<float>()[3], 3);
  EXPECT_THROW(target.copy_from(counted({4})), UsageError);
  EXPECT_THROW(target.copy_from(Tensor(DType::F64, {2, 2})), UsageError);
}

TEST(Tensor, SameBitsDetectsEveryDifference) {
  const Tensor x = counted({2, 2});
  Tensor y = x.clone();
  EXPECT_TRUE(x.same_bits(y));
  y.values<float>()[3] += 1;
  EXPECT_FALSE(x.same_bits(y));
  EXPECT_FALSE(x.same_bits(x.reshaped({4})));
  EXPECT_FALSE(Tensor(DType::F32, {1}).same_bits(Tensor(DType::I32, {1})));
}

TEST(Tensor, AViewMayNotLeaveItsBuffer) {
  auto buffer = host().allocate(16);
  EXPECT_NO_THROW(Tensor(DType::F32, {2}, buffer, 8));
  EXPECT_THROW(Tensor(DType::F32, {3}, buffer, 8), InternalError);
}

TEST(Tensor, IsCreatedFromNestedBraces) {
  const Tensor matrix = Tensor::from({{1, 2, 3}, {4, 5, 6}});
  EXPECT_EQ(matrix.shape(), (Shape{2, 3}));
  EXPECT_EQ(matrix.dtype(), DType::I32);
  EXPECT_EQ(matrix.at<std::int32_t>(1, 0), 4);
  EXPECT_EQ(Tensor::from({0.5, 1.5}).dtype(), DType::F32);
  EXPECT_EQ(Tensor::from({0.1}, DType::F64).item(), 0.1);
  EXPECT_EQ(Tensor::from({true, false}).dtype(), DType::Bool);
  EXPECT_EQ(Tensor::from({{{1, 2}}, {{3, 4}}}).shape(), (Shape{2, 1, 2}));
  EXPECT_THROW(Tensor::from({{1, 2}, {3}}), UsageError);
}

TEST(Tensor, IsIndexedFromBothEnds) {
  Tensor tensor = counted({4, 3});
  EXPECT_EQ(tensor[1].shape(), (Shape{3}));
  EXPECT_EQ(tensor[1][2].item(), 5);
  EXPECT_EQ(tensor[-1][-3].item(), 9);
  EXPECT_EQ(tensor.at<float>(-1, 0), 9);
  tensor[0].values<float>()[1] = 70;  // a view
  EXPECT_EQ(tensor.at<float>(0, 1), 70);
  tensor.at<float>(0, 1) = 1;
  EXPECT_EQ(tensor[0][1].item(), 1);
  EXPECT_THROW(tensor[4], UsageError);
  EXPECT_THROW(tensor[-5], UsageError);
  EXPECT_THROW(tensor[0][0][0], UsageError);
  EXPECT_THROW(tensor.at<float>(1), UsageError);
  EXPECT_THROW(tensor.at<float>(1, 3), UsageError);
  EXPECT_THROW(tensor.at<double>(1, 1), UsageError);
  EXPECT_THROW(Tensor()[0], UsageError);
}

// The values as numpy.array2string prints them (checked with NumPy 2.4.6), except for bools.
TEST(Tensor, PrintsLikeNumPy) {
  std::ostringstream text;
  text << Tensor::from({{1, 2}, {3, -4}});
  EXPECT_EQ(text.str(), "Tensor([[ 1  2]\n        [ 3 -4]], shape=(2, 2), dtype=i32)");
  EXPECT_EQ(Tensor::from({1.0, 2.5, -3.25}).str(),
            "Tensor([ 1.    2.5  -3.25], shape=(3,), dtype=f32)");
  EXPECT_EQ(Tensor::from({0.1, 0.2}).str(), "Tensor([0.1 0.2], shape=(2,), dtype=f32)");
  EXPECT_EQ(Tensor::from({1e-5, 1500.0}).str(), "Tensor([1.0e-05 1.5e+03], shape=(2,), dtype=f32)");
  EXPECT_EQ(Tensor::scalar(3.5f).str(), "Tensor(3.5, shape=(), dtype=f32)");
  EXPECT_EQ(Tensor(DType::F32, {0, 3}).str(), "Tensor([], shape=(0, 3), dtype=f32)");
  EXPECT_EQ(fmt::format("{}", Tensor::from({true, false})),
            "Tensor([ true false], shape=(2,), dtype=bool)");
  EXPECT_EQ(counted({1001}).str(),
            "Tensor([   0.    1.    2. ...  998.  999. 1000.], shape=(1001,), dtype=f32)");
  EXPECT_EQ(Tensor(DType::I64, {40, 40}).str(),
            "Tensor([[0 0 0 ... 0 0 0]\n        [0 0 0 ... 0 0 0]\n        [0 0 0 ... 0 0 0]\n"
            "        ...\n        [0 0 0 ... 0 0 0]\n        [0 0 0 ... 0 0 0]\n"
            "        [0 0 0 ... 0 0 0]], shape=(40, 40), dtype=i64)");
  EXPECT_EQ(Tensor().str(), "Tensor()");
}

TEST(Tensor, LabelsBecomeOneHotRows) {
  const Tensor rows = to_categorical(Tensor::from({0, 2, 1}));
  EXPECT_TRUE(rows.same_bits(Tensor::from({{1.0, 0.0, 0.0}, {0.0, 0.0, 1.0}, {0.0, 1.0, 0.0}})));
  EXPECT_EQ(to_categorical(Tensor::from({{1}, {0}}), 10).shape(), (Shape{2, 10}));
  EXPECT_EQ(to_categorical(Tensor::from({{1, 0, 1}, {0, 1, 1}})).shape(), (Shape{2, 3, 2}));
  EXPECT_THROW(to_categorical(Tensor::from({0, 3}), 3), DataError);
  EXPECT_THROW(to_categorical(Tensor::from({-1, 0})), DataError);
  EXPECT_THROW(to_categorical(Tensor::from({0.5})), DataError);
}

TEST(Tensor, LabelsThatAreNoIntegersAreErrorsWithTheirValue) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const double label : {1e300, -1e300, 9.3e18, inf, -inf, std::nan("")}) {
    for (const std::optional<std::int64_t> classes : {std::optional<std::int64_t>(), {3}}) {
      try {
        to_categorical(Tensor::from({1.0, label}, DType::F64), classes);
        ADD_FAILURE() << label << " was accepted as a class";
      } catch (const DataError& error) {
        const std::string message = error.what();
        EXPECT_NE(message.find(fmt::format("label 1 is {},", label)), std::string::npos) << message;
      }
    }
  }
}

}  // namespace
}  // namespace lockstep
