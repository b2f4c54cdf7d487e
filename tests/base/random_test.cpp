#include "lockstep/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace lockstep {
namespace {

// Known answers from the authors' Random123 library.
TEST(Philox, GivesThePublishedAnswers) {
  EXPECT_EQ(philox({0, 0}, {0, 0, 0, 0}),
            (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones}, {ones, ones, ones, ones}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0xa4093822, 0x299f31d0}, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UnitFloatsAreInTheHalfOpenInterval) {
  EXPECT_EQ(to_unit_float(0), 0.0f);
  EXPECT_LT(to_unit_float(0xffffffff), 1.0f);
  EXPECT_EQ(to_unit_float(0x80000000), 0.5f);
}

TEST(Keys, DifferWithSeedAndStream) {
  std::set<std::pair<std::uint32_t, std::uint32_t>> keys;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    for (std::uint64_t stream = 0; stream < 20; ++stream) {
      const PhiloxKey key = make_key(seed, stream);
      keys.emplace(key.low, key.high);
    }
  }
  EXPECT_EQ(keys.size(), 400u);
  EXPECT_NE(hash_name("dense_1/kernel"), hash_name("dense_2/kernel"));
}

TEST(RandomSequence, RepeatsFromTheSameSeed) {
  RandomSequence a(7, 1);
  RandomSequence b(7, 1);
  RandomSequence other(8, 1);
  bool differs = false;
  for (int i = 0; i < 100; ++i) {
    const std::uint32_t word = a.next();
    EXPECT_EQ(word, b.next());
    differs = differs || word != other.next();
  }
  EXPECT_TRUE(differs);
}

TEST(RandomSequence, ContinuesFromASavedPosition) {
  RandomSequence sequence(7, 1);
  for (int i = 0; i < 13; ++i) sequence.next();
  const std::uint64_t position = sequence.position();
  std::vector<std::uint32_t> expected;
  for (int i = 0; i < 9; ++i) expected.push_back(sequence.next());
  RandomSequence restored(7, 1);
  restored.seek(position);
  for (std::uint32_t word : expected) EXPECT_EQ(restored.next(), word);
}

TEST(RandomSequence, BelowIsUniform) {
  RandomSequence sequence(7, 2);
  std::vector<int> counts(7);
  for (int i = 0; i < 70'000; ++i) ++counts.at(sequence.below(7));
  for (int count : counts) EXPECT_NEAR(count, 10'000, 500);  // five standard deviations
  EXPECT_EQ(sequence.below(1), 0u);
}

TEST(RandomSequence, NormalsHaveMeanZeroAndStandardDeviationOne) {
  RandomSequence sequence(7, 3);
  double sum = 0;
  double squares = 0;
  constexpr int kCount = 100'000;
  for (int i = 0; i < kCount; ++i) {
    const double x = sequence.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.02);
  EXPECT_NEAR(squares / kCount, 1, 0.03);
}

}  // namespace
}  // namespace lockstep
