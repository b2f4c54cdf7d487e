#include "lockstep/base/half.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/base/random.h"

namespace lockstep {
namespace {

template <class T>
T of_bits(int bits) {
  T value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

// The value of a bit pattern by the definition of the format: sign, exponent and fraction.
double meaning(int bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias - fraction_bits);
}

template <class T>
class SmallFloats : public testing::Test {};
using Kinds = testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(SmallFloats, Kinds);

TYPED_TEST(SmallFloats, EveryBitPatternDecodesAsDefinedAndRoundsToItself) {
  const bool half = std::is_same_v<TypeParam, Half>;
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = of_bits<TypeParam>(bits);
    const double expected = half ? meaning(bits, 5, 10) : meaning(bits, 8, 7);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(value)) << bits;
      ASSERT_TRUE(std::isnan(static_cast<float>(TypeParam(value)))) << bits;
    } else {
      ASSERT_EQ(value, expected) << bits;
      ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << bits;
      ASSERT_EQ(TypeParam(value).bits, bits);
    }
  }
}

// For all pairs of neighbours, including subnormals and the gap before infinity.
TYPED_TEST(SmallFloats, RoundsToTheNearestAndTiesToEven) {
  const int infinity = TypeParam(std::numeric_limits<float>::infinity()).bits;
  for (int bits = 0; bits < infinity; ++bits) {
    const double below = of_bits<TypeParam>(bits);
    // Above the largest finite value, the spacing stays the same as below it.
    const double step = bits + 1 < infinity
                            ? static_cast<double>(of_bits<TypeParam>(bits + 1)) - below
                            : below - static_cast<double>(of_bits<TypeParam>(bits - 1));
    const auto middle = static_cast<float>(below + step / 2);
    const float largest = std::numeric_limits<float>::max();
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(TypeParam(middle).bits, even) << bits;
    ASSERT_EQ(TypeParam(-middle).bits, even | 0x8000) << bits;
    ASSERT_EQ(TypeParam(std::nextafter(middle, 0.0F)).bits, bits);
    ASSERT_EQ(TypeParam(std::nextafter(middle, largest)).bits, bits + 1);
    // A double just off the tie, too close for a float to tell apart.
    ASSERT_EQ(TypeParam(static_cast<double>(middle) * (1 + 1e-12)).bits, bits + 1);
    ASSERT_EQ(TypeParam(static_cast<double>(middle) * (1 - 1e-12)).bits, bits);
  }
}

TYPED_TEST(SmallFloats, ConvertFromIntegersBoolsAndEachOther) {
  EXPECT_EQ(static_cast<float>(TypeParam(3)), 3.0F);
  EXPECT_EQ(static_cast<float>(TypeParam(true)), 1.0F);
  EXPECT_EQ(static_cast<float>(TypeParam(std::int64_t{-128})), -128.0F);
  EXPECT_EQ(static_cast<float>(TypeParam(Half(0.5F))), 0.5F);
  EXPECT_EQ(static_cast<float>(TypeParam(BFloat16(-2.0F))), -2.0F);
  EXPECT_EQ(static_cast<std::int64_t>(TypeParam(7.0F)), 7);
  EXPECT_TRUE(std::isinf(static_cast<float>(TypeParam(1e39))));
  EXPECT_EQ(TypeParam(-0.0F).bits, 0x8000);
}

#if defined(__FLT16_MAX__)
TEST(Half, RoundsLikeTheCompilersFloat16) {
  RandomSequence random(1, 1);
  for (int i = 0; i < 1'000'000; ++i) {
    // All exponents are equally likely, so f16 can hold few: every second value is moved near it.
    auto bits = static_cast<std::uint32_t>(random.below(std::uint64_t{1} << 32));
    if (i % 2 == 0) bits = (bits & 0x8FFFFFFFu) | 0x30000000u;
    const auto value = std::bit_cast<float>(bits);
    if (std::isnan(value)) continue;
    __extension__ const auto expected = static_cast<_Float16>(value);
    ASSERT_EQ(Half(value).bits, std::bit_cast<std::uint16_t>(expected)) << value;
  }
}
#endif

}  // namespace
}  // namespace lockstep
