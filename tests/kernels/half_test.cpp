// 16-bit floats on the CPU: computed in f32 and rounded when stored. (Every op case also runs in 16
// bits: LOCKSTEP_OP_CASES.)
#include "lockstep/base/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "kernels/evaluate.h"
#include "lockstep/base/random.h"

namespace lockstep {
namespace {

Tensor normal(DType dtype, Shape shape, std::uint64_t stream) {
  Tensor tensor(DType::F32, std::move(shape));
  RandomSequence random(1, stream);
  for (float& value : tensor.values<float>()) value = static_cast<float>(random.normal());
  return tensor.cast(dtype);
}

class InSixteenBits : public testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types, InSixteenBits, testing::Values(DType::F16, DType::BF16),
                         [](const auto& info) { return std::string(name_of(info.param)); });

TEST_P(InSixteenBits, CastsAreExactForEveryBitPatternAndAnyFloat) {
  Tensor patterns(GetParam(), {65536});
  for (std::size_t i = 0; i < 65536; ++i) {
    reinterpret_cast<std::uint16_t*>(patterns.raw())[i] = static_cast<std::uint16_t>(i);
  }
  Tensor numbers(DType::F32, {100'003});
  RandomSequence random(2, 2);
  for (float& value : numbers.values<float>()) {
    value = std::bit_cast<float>(static_cast<std::uint32_t>(random.below(std::uint64_t{1} << 32)));
  }
  for (const KernelLibrary* library : {&cpu_kernels(), &reference_kernels()}) {
    const Tensor wide = evaluate(
        {patterns}, [](auto in) { return cast(in[0], DType::F32); }, *library);
    EXPECT_TRUE(wide.same_bits(patterns.cast(DType::F32)));
    const Tensor rounded = evaluate(
        {numbers}, [&](auto in) { return cast(in[0], GetParam()); }, *library);
    EXPECT_TRUE(rounded.same_bits(numbers.cast(GetParam())));
  }
}

TEST_P(InSixteenBits, CastsToAndFromOtherTypesRoundAndClamp) {
  const Tensor x = floats({-3.0F, 0.0F, 2.5F, 300.0F}).cast(GetParam());
  const auto to = [&](DType dtype) {
    return evaluate({x}, [&](auto in) { return cast(in[0], dtype); });
  };
  EXPECT_EQ(list<std::int32_t>(to(DType::I32)), (std::vector<std::int32_t>{-3, 0, 2, 300}));
  EXPECT_EQ(list<std::uint8_t>(to(DType::U8)), (std::vector<std::uint8_t>{0, 0, 2, 255}));
  EXPECT_EQ(list<double>(to(DType::F64)), (std::vector<double>{-3, 0, 2.5, 300}));
  EXPECT_EQ(list<bool>(to(DType::Bool)), (std::vector<bool>{true, false, true, true}));
  const Tensor nothing = floats({std::nanf("")}).cast(GetParam());
  EXPECT_EQ(evaluate({nothing}, [](auto in) { return cast(in[0], DType::I64); }).item(), 0);
  const Tensor whole = Tensor::of(std::vector<std::int64_t>{7, -9}, Shape{2});
  const Tensor back = evaluate({whole}, [&](auto in) { return cast(in[0], GetParam()); });
  EXPECT_EQ(list<float>(back.cast(DType::F32)), (std::vector<float>{7, -9}));
}

// A sum of 4096 ones would stop at 2048 in f16 and at 256 in bf16 if it were accumulated there.
TEST_P(InSixteenBits, ResultsAreRoundedAndSumsAreNot) {
  const Tensor a = normal(GetParam(), {17, 4096}, 1);
  const Tensor b = normal(GetParam(), {4096, 9}, 2);
  const auto product = [](auto in) { return matmul(in[0], in[1]); };
  for (const KernelLibrary* library : {&cpu_kernels(), &reference_kernels()}) {
    const Tensor small = evaluate({a, b}, product, *library);
    const Tensor whole = evaluate({a.cast(DType::F32), b.cast(DType::F32)}, product, *library);
    EXPECT_TRUE(small.same_bits(whole.cast(GetParam())));
  }
  const Tensor ones = floats(std::vector<float>(4096, 1.0F)).cast(GetParam());
  EXPECT_EQ(evaluate({ones}, [](auto in) { return reduce_sum(in[0]); }).item(), 4096);
  EXPECT_EQ(evaluate({ones}, [](auto in) { return reduce_mean(in[0]); }).item(), 1);
}

TEST_P(InSixteenBits, NormsHaveParametersAndStatisticsInF32) {
  const Tensor x = normal(GetParam(), {6, 5, 5, 3}, 3);
  const Tensor gamma = normal(DType::F32, {3}, 4);
  const Tensor beta = normal(DType::F32, {3}, 5);
  const std::vector<Tensor> batch = evaluate_all({x, gamma, beta}, [](auto in) {
    const BatchNormResult result = batch_norm(in[0], in[1], in[2]);
    return std::vector<Value>{result.y, result.mean, result.variance};
  });
  EXPECT_EQ(batch[0].dtype(), GetParam());
  EXPECT_EQ(batch[1].dtype(), DType::F32);
  EXPECT_EQ(batch[2].dtype(), DType::F32);
  double mean = 0;  // of the last channel
  const Tensor wide = x.cast(DType::F32);
  for (std::size_t i = 2; i < wide.values<float>().size(); i += 3) {
    mean += static_cast<double>(wide.values<float>()[i]) / (6 * 5 * 5);
  }
  EXPECT_NEAR(batch[1].values<float>()[2], mean, 1e-6);

  Graph graph;
  const Value image = graph.input("x", {GetParam(), {2, 3}});
  const Value wide_image = graph.input("wide", {DType::F32, {2, 3}});
  const Value small = graph.input("small", {GetParam(), {3}});
  const Value full = graph.input("full", {DType::F32, {3}});
  EXPECT_EQ(layer_norm(image, full, full).dtype(), GetParam());
  EXPECT_EQ(layer_norm(image, small, small).dtype(), GetParam());
  EXPECT_THROW(layer_norm(image, full, small), UsageError);
  EXPECT_THROW(layer_norm(wide_image, small, small), UsageError);
  EXPECT_THROW(batch_norm(image, small, full), UsageError);
  EXPECT_THROW(batch_norm_inference(image, full, full, full, small), UsageError);
}

TEST_P(InSixteenBits, ElementsAreMovedUnchanged) {
  const Tensor x = normal(GetParam(), {4, 6}, 6);
  const Tensor moved = evaluate({x}, [](auto in) {
    const std::vector<Value> halves = split(transpose(in[0], {1, 0}), {2, 4}, 0);
    const Value back = transpose(concat(halves, 0), {1, 0});
    return slice(pad(back, {1, 0}, {0, 2}, 0.5), {1, 0}, {4, 6});
  });
  EXPECT_TRUE(moved.same_bits(x));
  const Tensor padded = evaluate({x}, [](auto in) { return pad(in[0], {0, 0}, {0, 1}, 0.5); });
  EXPECT_EQ(padded.cast(DType::F32).values<float>()[6], 0.5F);
}

}  // namespace
}  // namespace lockstep
