#include <gtest/gtest.h>

#include "data/positions.h"

namespace lockstep {
namespace {

bool is_even(const Element& element) {
  return element[0].values<std::int64_t>()[0] % 2 == 0;
}

Predicate failing_at(std::int64_t bad) {
  return [bad](const Element& element) {
    if (element[0].values<std::int64_t>()[0] == bad) throw std::runtime_error("cannot be judged");
    return true;
  };
}

TEST(Filter, KeepsMatchingElementsAndTheirIds) {
  const std::vector<Element> kept = all_of(Dataset::range(9).filter(is_even), 3);
  EXPECT_EQ(numbers_of(kept), (std::vector<std::int64_t>{0, 2, 4, 6, 8}));
  for (const Element& element : kept) {
    EXPECT_EQ(element.sample.epoch, 3u);
    EXPECT_EQ(element.sample.number,
              static_cast<std::uint64_t>(element[0].values<std::int64_t>()[0]));
  }
  EXPECT_TRUE(all_of(Dataset::range(9).filter([](const Element&) { return false; })).empty());
  EXPECT_EQ(Dataset::range(9).filter(is_even).cardinality(), std::nullopt);
  EXPECT_EQ(Dataset::range(0).filter(is_even).cardinality(), 0);
  EXPECT_THROW(Dataset::range(9).filter(nullptr), UsageError);
}

TEST(Filter, SavedPositionsAreExact) {
  expect_positions_hold("filter", Dataset::range(25).filter(is_even));
  expect_positions_hold(
      "filtered shuffle",
      Dataset::range(25).shuffle({.buffer = 7, .seed = 1}).filter(is_even).batch(2).prefetch(2));
}

TEST(Filter, AnErrorNamesStageAndSampleAndRepeats) {
  const Dataset dataset = Dataset::range(9).filter(failing_at(4), {.name = "judge"});
  const auto iterator = dataset.iterator(2);
  EXPECT_EQ(rest_of(*iterator, 4).size(), 4u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(message_of<DataError>([&] { iterator->next(); }),
              "[filter judge] sample 4 of epoch 2: cannot be judged");
  }
}

TEST(Filter, AfterAnErrorTheElementIsNotLost) {
  bool repaired = false;
  const Dataset dataset = Dataset::range(9).filter([&](const Element& element) {
    if (element[0].values<std::int64_t>()[0] == 4 && !repaired) fail<UsageError>("not yet");
    return true;
  });
  const auto iterator = dataset.iterator();
  rest_of(*iterator, 4);
  EXPECT_THROW(iterator->next(), UsageError);
  const std::string position = iterator->save();
  repaired = true;
  const auto restored = dataset.iterator();
  restored->restore(position);
  EXPECT_EQ(numbers_of(rest_of(*restored)), count_up(5, 4));
}

TEST(Filter, ErrorsCanBeSkippedAndAreReported) {
  const auto iterator = Dataset::range(9)
                            .filter(failing_at(4), {.on_error = OnError::Skip, .name = "judge"})
                            .iterator();
  EXPECT_EQ(numbers_of(rest_of(*iterator)), (std::vector<std::int64_t>{0, 1, 2, 3, 5, 6, 7, 8}));
  const PipelineReport report = iterator->report();
  EXPECT_EQ(report.skipped, 1);
  ASSERT_EQ(report.skipped_first.size(), 1u);
  EXPECT_TRUE(contains(report.skipped_first[0], "sample 4 of epoch 0")) << report.skipped_first[0];
}

TEST(Filter, AnIteratorThatFindsNothingCanBeDestroyed) {
  const Dataset nothing =
      Dataset::range(100)
          .repeat()
          .filter([seen = std::make_shared<int>()](const Element&) { return (*seen)++ == 0; })
          .prefetch(4);
  const auto iterator = nothing.iterator();
  EXPECT_TRUE(iterator->next());
}

}  // namespace
}  // namespace lockstep
