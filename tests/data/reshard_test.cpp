// An epoch that n shards begin and m shards finish.
#include <gtest/gtest.h>

#include <map>

#include "lockstep/base/error.h"
#include "lockstep/data/dataset.h"

namespace lockstep {
namespace {

constexpr std::int64_t kSamples = 53;

Dataset pipeline(std::int64_t batch) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < kSamples; ++i) values.push_back(i);
  return Dataset::from_tensor_slices({Tensor::of(values, {kSamples})})
      .shard()
      .map([](const Element& element) { return element; })
      .shuffle({.buffer = 7, .seed = 3})
      .batch(batch)
      .prefetch(2);
}

std::vector<std::unique_ptr<Iterator>> shards(std::int64_t count, std::int64_t batch) {
  std::vector<std::unique_ptr<Iterator>> iterators;
  for (std::int64_t shard = 0; shard < count; ++shard) {
    iterators.push_back(pipeline(batch).iterator({.epoch = 1, .shard = shard, .shards = count}));
  }
  return iterators;
}

using Seen = std::map<std::int64_t, int>;

bool take(Iterator& iterator, Seen& seen) {
  const std::optional<Element> batch = iterator.next();
  if (!batch) return false;
  for (const std::int64_t value : std::as_const(batch->front()).values<std::int64_t>()) {
    ++seen[value];
  }
  return true;
}

std::vector<std::string> save_all(const std::vector<std::unique_ptr<Iterator>>& iterators) {
  std::vector<std::string> positions;
  for (const std::unique_ptr<Iterator>& iterator : iterators) positions.push_back(iterator->save());
  return positions;
}

void restore_all(const std::vector<std::unique_ptr<Iterator>>& iterators,
                 const std::vector<std::string>& positions) {
  for (std::size_t i = 0; i < iterators.size(); ++i) iterators[i]->restore(positions[i]);
}

void expect_each_once(const Seen& seen) {
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kSamples));
  for (const auto& [value, times] : seen) EXPECT_EQ(times, 1) << "sample " << value;
}

TEST(Reshard, EverySampleIsSeenOnceWhateverTheNumberOfShards) {
  for (const std::int64_t before : {1, 2, 3, 5}) {
    for (const std::int64_t after : {1, 2, 4, 7}) {
      for (const int steps : {0, 1, 2, 5, 40}) {
        Seen seen;
        const auto first = shards(before, 3);
        for (int step = 0; step < steps; ++step) {
          for (const auto& iterator : first) take(*iterator, seen);
        }
        const auto second = shards(after, 2);
        restore_all(second, reshard(save_all(first), after));
        for (const auto& iterator : second) {
          while (take(*iterator, seen)) {
          }
        }
        expect_each_once(seen);
      }
    }
  }
}

TEST(Reshard, CanBeRepeatedAndSavedInBetween) {
  Seen seen;
  const auto four = shards(4, 2);
  for (const auto& iterator : four) take(*iterator, seen);
  const auto three = shards(3, 2);
  restore_all(three, reshard(save_all(four), 3));
  for (const auto& iterator : three) take(*iterator, seen);
  const auto again = shards(3, 5);
  restore_all(again, save_all(three));
  for (const auto& iterator : again) take(*iterator, seen);
  const auto two = shards(2, 1);
  restore_all(two, reshard(save_all(again), 2));
  for (const auto& iterator : two) {
    while (take(*iterator, seen)) {
    }
  }
  expect_each_once(seen);
}

TEST(Reshard, NeedsThePositionsOfAllShardsOfOneEpoch) {
  const auto two = shards(2, 2);
  std::vector<std::string> positions = save_all(two);
  EXPECT_THROW(reshard({positions[0]}, 1), UsageError);
  EXPECT_THROW(reshard({positions[1], positions[0]}, 1), UsageError);
  EXPECT_THROW(reshard({}, 1), UsageError);
  EXPECT_THROW(reshard(positions, 0), UsageError);
  const auto other_epoch = pipeline(2).iterator({.epoch = 2, .shard = 1, .shards = 2});
  EXPECT_THROW(reshard({positions[0], other_epoch->save()}, 1), UsageError);
  // A position of one shard is refused by another.
  EXPECT_THROW(two[0]->restore(positions[1]), UsageError);
}

}  // namespace
}  // namespace lockstep
