#include <gtest/gtest.h>

#include "data/positions.h"
#include "lockstep/data/datasets.h"

namespace lockstep {
namespace {

TEST(Unbatch, GivesTheRowsBack) {
  const Dataset dataset =
      datasets::synthetic({{DType::F32, {2, 3}}, {DType::I32, {}}}, {.count = 11});
  const std::vector<Element> rows = all_of(dataset);
  const std::vector<Element> again = all_of(dataset.batch(4).unbatch());
  ASSERT_EQ(again.size(), rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_TRUE(again[i][0].same_bits(rows[i][0]));
    EXPECT_TRUE(again[i][1].same_bits(rows[i][1]));
  }
  expect_ids_differ(again);
  EXPECT_EQ(dataset.batch(4).unbatch().element_spec(), dataset.element_spec());
}

TEST(Unbatch, RowsOfRepeatedBatchesHaveDistinctIds) {
  expect_ids_differ(all_of(Dataset::range(6).repeat(3).batch(2).unbatch()));
  expect_ids_differ(all_of(Dataset::range(6).batch(4).unbatch().batch(4).unbatch()));
}

TEST(Unbatch, SavedPositionsAreExact) {
  expect_positions_hold("unbatch", Dataset::range(11).batch(4).unbatch());
  expect_positions_hold(
      "shuffled",
      Dataset::range(11).batch(3).shuffle({.buffer = 2, .seed = 1}).unbatch().batch(2).prefetch(2));
}

TEST(Unbatch, ThePositionContainsNoRows) {
  const Dataset big =
      datasets::synthetic({{DType::F32, {1000}}}, {.count = 64}).batch(32).unbatch();
  const auto iterator = big.iterator();
  for (int i = 0; i < 5; ++i) iterator->next();
  EXPECT_LT(iterator->save().size(), 1000u);
}

TEST(Unbatch, SkipsRows) {
  EXPECT_EQ(numbers_of(Dataset::range(20).batch(3).unbatch().skip(7)), count_up(13, 7));
}

TEST(Unbatch, ScalarsHaveNoRows) {
  EXPECT_THROW(Dataset::range(3).unbatch(), UsageError);
  EXPECT_THROW(Dataset::range(3).batch(3).enumerate().unbatch(), UsageError);
}

}  // namespace
}  // namespace lockstep
