// zip, concatenate and enumerate.
#include <gtest/gtest.h>

#include "data/positions.h"
#include "lockstep/data/datasets.h"

namespace lockstep {
namespace {

Dataset tens(std::int64_t count) {
  return Dataset::range(count).map([](const Element& element) {
    return Element{Tensor::scalar(element[0].values<std::int64_t>()[0] * 10)};
  });
}

TEST(Zip, PairsElementsUntilTheShorterEnds) {
  for (const auto& [left, right] : {std::pair(5, 3), std::pair(3, 5), std::pair(3, 0)}) {
    const Dataset dataset = Dataset::range(left).zip(tens(right));
    const std::vector<Element> elements = all_of(dataset);
    ASSERT_EQ(std::ssize(elements), std::min(left, right));
    EXPECT_EQ(dataset.cardinality(), std::min(left, right));
    for (std::int64_t i = 0; i < std::ssize(elements); ++i) {
      const Element& element = elements[static_cast<std::size_t>(i)];
      ASSERT_EQ(element.size(), 2u);
      EXPECT_EQ(element[0].values<std::int64_t>()[0], i);
      EXPECT_EQ(element[1].values<std::int64_t>()[0], 10 * i);
    }
    expect_ids_differ(elements);
    EXPECT_EQ(all_of(dataset.skip(2)).size(),
              static_cast<std::size_t>(std::max(0, std::min(left, right) - 2)));
  }
  EXPECT_EQ(Dataset::range(5).zip(Dataset::range(3).repeat()).cardinality(), 5);
}

TEST(Zip, StaysAtItsEnd) {
  const auto iterator = Dataset::range(5).zip(Dataset::range(2)).iterator();
  EXPECT_EQ(rest_of(*iterator).size(), 2u);
  EXPECT_FALSE(iterator->next());
  const auto restored = Dataset::range(5).zip(Dataset::range(2)).iterator();
  restored->restore(iterator->save());
  EXPECT_FALSE(restored->next());
}

TEST(Zip, SavedPositionsAreExact) {
  expect_positions_hold("zip", Dataset::range(9).zip(tens(7)));
  expect_positions_hold("zip of shuffles", Dataset::range(9)
                                               .shuffle({.buffer = 4, .seed = 1})
                                               .zip(tens(12).shuffle({.seed = 2}))
                                               .prefetch(2)
                                               .batch(2));
}

TEST(Concatenate, GivesOneAfterTheOther) {
  const Dataset dataset = Dataset::range(3).concatenate(tens(2)).concatenate(Dataset::range(2));
  const std::vector<Element> elements = all_of(dataset);
  EXPECT_EQ(numbers_of(elements), (std::vector<std::int64_t>{0, 1, 2, 0, 10, 0, 1}));
  expect_ids_differ(elements);
  EXPECT_EQ(dataset.cardinality(), 7);
  EXPECT_EQ(numbers_of(dataset.skip(2)), (std::vector<std::int64_t>{2, 0, 10, 0, 1}));
  EXPECT_EQ(numbers_of(dataset.skip(4)), (std::vector<std::int64_t>{10, 0, 1}));
  EXPECT_TRUE(all_of(dataset.skip(8)).empty());
}

TEST(Concatenate, OneDataSetTwiceHasDifferentIds) {
  const Dataset shuffled = Dataset::range(20).shuffle({.seed = 1});
  expect_ids_differ(all_of(shuffled.concatenate(shuffled).concatenate(shuffled)));
  expect_ids_differ(all_of(shuffled.concatenate(shuffled.concatenate(shuffled))));
}

TEST(Concatenate, SavedPositionsAreExact) {
  expect_positions_hold("concatenate", Dataset::range(4).concatenate(tens(5)));
  expect_positions_hold("with an empty one",
                        Dataset::range(0).concatenate(tens(3)).concatenate(Dataset::range(0)));
  expect_positions_hold(
      "shuffled",
      Dataset::range(4).concatenate(tens(5)).shuffle({.buffer = 3, .seed = 5}).prefetch(1));
}

TEST(Concatenate, OtherTypesAreRefusedAndOtherExtentsVary) {
  const auto of = [](std::vector<ElementSpec> spec) {
    return datasets::synthetic(std::move(spec), {.count = 2});
  };
  EXPECT_THROW(Dataset::range(3).concatenate(of({{DType::I32, {}}})), UsageError);
  EXPECT_THROW(Dataset::range(3).concatenate(of({{DType::I64, {2}}})), UsageError);
  EXPECT_THROW(Dataset::range(3).concatenate(of({{DType::I64, {}}, {DType::I64, {}}})), UsageError);
  const Dataset both = of({{DType::F32, {2}}}).concatenate(of({{DType::F32, {3}}}));
  EXPECT_TRUE(both.element_spec()[0].varies);
  EXPECT_EQ(all_of(both.padded_batch(4))[0][0].shape(), (Shape{4, 3}));
}

TEST(Enumerate, NumbersTheElements) {
  const std::vector<Element> elements = all_of(tens(4).enumerate(7));
  EXPECT_EQ(numbers_of(elements), count_up(4, 7));
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(elements[i][1].values<std::int64_t>()[0], 10 * static_cast<std::int64_t>(i));
    EXPECT_EQ(elements[i].sample, (SampleId{0, i}));
  }
  EXPECT_EQ(numbers_of(tens(4).enumerate(7).skip(3)), count_up(1, 10));
  EXPECT_EQ(tens(4).enumerate().element_spec(),
            (std::vector<ElementSpec>{{DType::I64, {}}, {DType::I64, {}}}));
}

TEST(Enumerate, SavedPositionsAreExact) {
  expect_positions_hold("enumerate", tens(9).shuffle({.buffer = 3}).enumerate(5).batch(2));
}

}  // namespace
}  // namespace lockstep
