#include <gtest/gtest.h>

#include "data/positions.h"

namespace lockstep {
namespace {

Dataset rows(std::int64_t count) {
  return Dataset::from_tensor_slices({Tensor::of(count_up(count), {count})});
}

std::vector<std::int64_t> every(std::int64_t count, std::int64_t of, std::int64_t from) {
  std::vector<std::int64_t> numbers;
  for (std::int64_t i = from; i < count; i += of) numbers.push_back(i);
  return numbers;
}

TEST(Shard, KeepsEveryNth) {
  for (const std::int64_t count : {0, 1, 2, 3, 10, 5000}) {
    for (const std::int64_t shards : {1, 2, 3, 7, 3000}) {
      for (const std::int64_t shard : {std::int64_t{0}, shards / 2, shards - 1}) {
        const std::vector<std::int64_t> expected = every(count, shards, shard);
        const Dataset from_table = rows(count).shard(shards, shard);
        EXPECT_EQ(numbers_of(Dataset::range(count).shard(shards, shard)), expected);
        EXPECT_EQ(numbers_of(from_table), expected);
        EXPECT_EQ(from_table.cardinality(), std::ssize(expected));
        std::vector<std::int64_t> batched;
        for (const Element& batch : all_of(from_table.batch(4))) {
          const auto values = batch[0].values<std::int64_t>();
          batched.insert(batched.end(), values.begin(), values.end());
        }
        EXPECT_EQ(batched, expected) << count << " in " << shards;
        EXPECT_EQ(numbers_of(from_table.skip(2)), every(count, shards, shard + 2 * shards));
      }
    }
  }
}

TEST(Shard, WithoutArgumentsKeepsTheShardOfTheIterator) {
  const Dataset dataset = Dataset::range(11).shard();
  for (std::int64_t shard = 0; shard < 3; ++shard) {
    const auto iterator = dataset.iterator({.shard = shard, .shards = 3});
    EXPECT_EQ(numbers_of(rest_of(*iterator)), every(11, 3, shard));
  }
  EXPECT_EQ(numbers_of(dataset), count_up(11));
}

TEST(Shard, SavedPositionsAreExact) {
  expect_positions_hold("elements", Dataset::range(20).shard(3, 1));
  expect_positions_hold("rows", rows(20).shuffle({.seed = 2}).shard(3, 2).batch(2));
  expect_positions_hold("twice", rows(20).shard(2, 1).shard(3, 1).prefetch(2));
}

TEST(Shard, ElementsOfOtherShardsAreNotComputed) {
  int calls = 0;
  const Dataset dataset = Dataset::range(12)
                              .map(
                                  [&](const Element& element) {
                                    ++calls;
                                    return element;
                                  },
                                  {.spec = {{DType::I64, {}}}})
                              .shard(4, 1);
  EXPECT_EQ(all_of(dataset).size(), 3u);
  EXPECT_EQ(calls, 3);
}

TEST(Shard, InvalidShardsAreRefused) {
  EXPECT_THROW(Dataset::range(3).shard(0, 0), UsageError);
  EXPECT_THROW(Dataset::range(3).shard(2, 2), UsageError);
  EXPECT_THROW(Dataset::range(3).shard(2, -1), UsageError);
}

}  // namespace
}  // namespace lockstep
