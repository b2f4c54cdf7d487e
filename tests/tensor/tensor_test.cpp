#include "lockstep/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>

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

TEST(Tensor, HoldsTheValuesItWasMadeOf) {
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

TEST(Tensor, NothingIsAValidTensor) {
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

TEST(Tensor, CopyFromWantsTheSameTypeAndShape) {
  Tensor target(DType::F32, {2, 2});
  target.copy_from(counted({2, 2}));
  EXPECT_EQ(target.values<float>()[3], 3);
  EXPECT_THROW(target.copy_from(counted({4})), UsageError);
  EXPECT_THROW(target.copy_from(Tensor(DType::F64, {2, 2})), UsageError);
}

TEST(Tensor, SameBitsSeesEveryDifference) {
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

}  // namespace
}  // namespace lockstep
