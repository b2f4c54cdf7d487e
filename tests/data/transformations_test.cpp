#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <numeric>

#include "lockstep/data/dataset.h"

namespace lockstep {
namespace {

using Values = std::vector<std::int32_t>;

Values iota(std::int32_t count, std::int32_t from = 0) {
  Values values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), from);
  return values;
}

Dataset of(const Values& values) {
  return Dataset::from_tensor_slices({Tensor::of(values, {std::ssize(values)})});
}

// All numbers of an epoch, with batches concatenated.
Values run(const Dataset& dataset, std::uint64_t epoch = 0) {
  Values values;
  const auto iterator = dataset.iterator(epoch);
  while (const auto element = iterator->next()) {
    const auto span = (*element)[0].values<std::int32_t>();
    values.insert(values.end(), span.begin(), span.end());
  }
  return values;
}

Values in_order(Values values) {
  std::ranges::sort(values);
  return values;
}

std::string usage_error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(FromTensorSlices, ElementsAreRows) {
  const Dataset dataset = Dataset::from_tensor_slices(
      {Tensor::of<float>({1, 2, 3, 4}, {2, 2}), Tensor::of<std::int32_t>({5, 6}, {2})});
  const auto iterator = dataset.iterator();
  EXPECT_TRUE((*iterator->next())[0].same_bits(Tensor::of<float>({1, 2}, {2})));
  EXPECT_TRUE((*iterator->next())[1].same_bits(Tensor::scalar<std::int32_t>(6)));
  EXPECT_FALSE(iterator->next());
  EXPECT_FALSE(iterator->next());
}

TEST(FromTensorSlices, DifferentRowCountsAreShown) {
  const std::string message = usage_error_of([] {
    Dataset::from_tensor_slices({Tensor(DType::F32, {3, 2}), Tensor(DType::I32, {4})});
  });
  EXPECT_NE(message.find("component 0 has 3 rows, component 1 has 4"), std::string::npos)
      << message;
  EXPECT_THROW(Dataset::from_tensor_slices({}), UsageError);
  EXPECT_THROW(Dataset::from_tensor_slices({Tensor()}), UsageError);
  EXPECT_THROW(Dataset::from_tensor_slices({Tensor::scalar(1.0f)}), UsageError);
}

TEST(Shuffle, EveryElementComesOnce) {
  for (const std::int64_t buffer : {0, 1, 2, 7, 99, 100, 1000}) {
    EXPECT_EQ(in_order(run(of(iota(100)).shuffle({.buffer = buffer, .seed = 3}))), iota(100))
        << buffer;
  }
  EXPECT_EQ(run(of(iota(100)).shuffle({.buffer = 1})), iota(100));
}

TEST(Shuffle, SeedAndEpochDetermineTheOrder) {
  const Dataset dataset = of(iota(100)).shuffle({.seed = 3});
  EXPECT_EQ(run(dataset, 4), run(dataset, 4));
  EXPECT_NE(run(dataset, 4), run(dataset, 5));
  EXPECT_NE(run(dataset, 4), run(of(iota(100)).shuffle({.seed = 4}), 4));
  const Dataset once = of(iota(100)).shuffle({.seed = 3, .reshuffle_each_iteration = false});
  EXPECT_EQ(run(once, 4), run(once, 5));
  EXPECT_NE(run(once), iota(100));
}

TEST(Shuffle, ABufferBoundsHowFarAnElementComesForward) {
  const Values values = run(of(iota(1000)).shuffle({.buffer = 10, .seed = 1}));
  for (std::int32_t i = 0; i < 1000; ++i) EXPECT_LT(values[static_cast<std::size_t>(i)], i + 10);
}

TEST(Shuffle, AFullShuffleGivesEveryOrderEquallyOften) {
  const Dataset dataset = of(iota(4)).shuffle({.seed = 11});
  std::map<Values, int> orders;
  constexpr int kEpochs = 24'000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) ++orders[run(dataset, epoch)];
  ASSERT_EQ(orders.size(), 24u);
  // 1000 of each are expected, with a standard deviation of 31.
  for (const auto& [order, count] : orders) EXPECT_NEAR(count, 1000, 160);
}

TEST(Shuffle, RowsAndElementsAreShuffledAlike) {
  const auto same = [](const Element& element) { return element; };
  for (const std::int64_t buffer : {0, 5, 60}) {
    const ShuffleOptions options{.buffer = buffer, .seed = 2};
    EXPECT_EQ(run(of(iota(50)).shuffle(options)), run(of(iota(50)).map(same).shuffle(options)));
  }
}

TEST(Shuffle, ThePositionDoesNotGrowWithTheData) {
  const auto iterator = of(iota(10'000)).shuffle({.seed = 1}).batch(64).iterator();
  iterator->next();
  EXPECT_LT(iterator->save().size(), 200u);
}

TEST(Shuffle, InvalidBuffersAreRefused) {
  EXPECT_THROW(of(iota(3)).shuffle({.buffer = -1}), UsageError);
  EXPECT_THROW(of(iota(3)).repeat().shuffle({}), UsageError);
}

TEST(Batch, TheLastIsShorterOrDropped) {
  const Dataset dataset = of(iota(7));
  const auto iterator = dataset.batch(3).iterator();
  std::vector<std::int64_t> sizes;
  while (const auto batch = iterator->next()) sizes.push_back((*batch)[0].shape()[0]);
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{3, 3, 1}));
  EXPECT_EQ(run(dataset.batch(3)), iota(7));
  EXPECT_EQ(run(dataset.batch(3, {.drop_remainder = true})), iota(6));
  EXPECT_THROW(dataset.batch(0), UsageError);
}

TEST(Batch, APositionCanBeContinuedWithAnotherSize) {
  const auto iterator = of(iota(10)).batch(3).iterator();
  iterator->next();
  const Dataset dataset = of(iota(10)).batch(2);
  const auto other = dataset.iterator();
  other->restore(iterator->save());
  EXPECT_TRUE((*other->next())[0].same_bits(Tensor::of<std::int32_t>({3, 4}, {2})));
}

TEST(Batch, AHeldBatchIsNotOverwritten) {
  const auto iterator = of(iota(300)).batch(3).iterator();
  std::vector<Element> held;
  while (auto batch = iterator->next()) held.push_back(std::move(*batch));
  for (std::int32_t i = 0; i < std::ssize(held); ++i) {
    EXPECT_EQ(held[static_cast<std::size_t>(i)][0].values<std::int32_t>()[0], 3 * i);
  }
}

TEST(Batch, ReleasedBuffersAreReused) {
  const auto iterator = of(iota(300)).batch(3).iterator();
  const std::byte* first = (*iterator->next())[0].raw();
  EXPECT_EQ((*iterator->next())[0].raw(), first);
}

TEST(Batch, ElementsOfDifferentShapesAreShown) {
  const auto growing = [](const Element& element) {
    return Element{Tensor(DType::F32, {element[0].values<std::int32_t>()[0] + 1})};
  };
  const auto iterator = of(iota(4)).map(growing).batch(2).iterator();
  const std::string message = usage_error_of([&] { iterator->next(); });
  EXPECT_NE(message.find("f32 (2,)"), std::string::npos) << message;
}

TEST(Batch, MemoryThatDoesNotFitIsRefusedBeforeAnythingIsRead) {
  const auto iterator = of(iota(6)).batch(4).iterator();
  Element wrong{Tensor(DType::F32, {4})};
  EXPECT_THROW(iterator->next_into(wrong), UsageError);
  Element small{Tensor(DType::I32, {3})};
  EXPECT_THROW(iterator->next_into(small), UsageError);
  EXPECT_THROW(iterator->next_into({}), UsageError);
  Element right{Tensor(DType::I32, {5})};
  EXPECT_EQ(iterator->next_into(right), 4);
  EXPECT_EQ(right[0].values<std::int32_t>()[3], 3);
  EXPECT_EQ(iterator->next_into(right), 2);
  EXPECT_EQ(iterator->next_into(right), std::nullopt);
}

TEST(TakeAndSkip, SplitADataset) {
  EXPECT_EQ(run(of(iota(10)).take(3)), iota(3));
  EXPECT_EQ(run(of(iota(10)).skip(3)), iota(7, 3));
  const Dataset shuffled = of(iota(10)).shuffle({.seed = 1});
  Values both = run(shuffled.take(4));
  const Values rest = run(shuffled.skip(4));
  both.insert(both.end(), rest.begin(), rest.end());
  EXPECT_EQ(both, run(shuffled));
  EXPECT_THROW(of(iota(3)).take(-2), UsageError);
  EXPECT_THROW(of(iota(3)).skip(-2), UsageError);
}

TEST(Repeat, EveryRoundIsReshuffled) {
  const Dataset dataset = of(iota(50)).shuffle({.seed = 1});
  const Values twice = run(dataset.repeat(2), 3);
  const Values first(twice.begin(), twice.begin() + 50);
  const Values second(twice.begin() + 50, twice.end());
  EXPECT_EQ(first, run(dataset, 6));
  EXPECT_EQ(second, run(dataset, 7));
  EXPECT_NE(first, second);
}

TEST(Repeat, AnEndlessOneHasNoCardinality) {
  const Dataset dataset = of(iota(3)).repeat();
  EXPECT_EQ(dataset.cardinality(), std::nullopt);
  EXPECT_EQ(run(dataset.take(7)), (Values{0, 1, 2, 0, 1, 2, 0}));
  EXPECT_EQ(dataset.take(7).cardinality(), 7);
  EXPECT_THROW(of(iota(3)).repeat(-2), UsageError);
}

TEST(Map, SkippedElementsAreNotComputed) {
  int calls = 0;
  const auto counting = [&](const Element& element) {
    ++calls;
    return element;
  };
  const auto iterator = of(iota(10)).map(counting).skip(8).iterator();
  calls = 0;
  while (iterator->next()) {
  }
  EXPECT_EQ(calls, 2);
}

TEST(Map, AGivenSpecAvoidsTheTrialCall) {
  int calls = 0;
  const auto counting = [&](const Element& element) {
    ++calls;
    return element;
  };
  const Dataset dataset = of(iota(2)).map(counting, {.spec = {{DType::I32, Shape{}}}});
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(run(dataset.batch(2)), iota(2));
  EXPECT_THROW(of(iota(2)).map(MapFunction()), UsageError);
}

Dataset failing_at(std::int32_t bad) {
  return of(iota(10)).map([bad](const Element& element) {
    const std::int32_t value = element[0].values<std::int32_t>()[0];
    if (value == bad) fail<DataError>("record {} is damaged", value);
    return element;
  });
}

TEST(Prefetch, AnErrorArrivesInOrderAndRepeats) {
  const auto iterator = failing_at(3).prefetch(8).iterator();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(iterator->next());
  EXPECT_THROW(iterator->next(), DataError);
  EXPECT_THROW(iterator->next(), DataError);
}

TEST(Prefetch, AfterAnErrorAnotherPositionCanBeSet) {
  const Dataset dataset = failing_at(3).prefetch(8);
  const auto iterator = dataset.iterator();
  const std::string start = iterator->save();
  for (int i = 0; i < 3; ++i) iterator->next();
  EXPECT_THROW(iterator->next(), DataError);
  iterator->restore(start);
  EXPECT_EQ((*iterator->next())[0].item(), 0);
}

TEST(Prefetch, RunsAheadOfTheConsumerWithinItsLimit) {
  std::atomic<int> made = 0;
  const auto counting = [&](const Element& element) {
    ++made;
    return element;
  };
  const Dataset dataset =
      of(iota(100)).map(counting, {.spec = {{DType::I32, Shape{}}}}).prefetch(5);
  const auto iterator = dataset.iterator();
  EXPECT_EQ(made, 0) << "nothing is computed before the first element is requested";
  for (int taken = 1; taken <= 100; ++taken) {
    ASSERT_TRUE(iterator->next());
    EXPECT_GE(made, taken);
    EXPECT_LE(made, taken + 5);
  }
}

TEST(Prefetch, CanBeDestroyedAtAnyMoment) {
  const Dataset dataset = of(iota(100)).batch(2).prefetch(3);
  for (int taken = 0; taken < 50; ++taken) {
    const auto iterator = dataset.iterator();
    for (int i = 0; i < taken; ++i) iterator->next();
  }
  dataset.iterator();
  EXPECT_THROW(of(iota(3)).prefetch(0), UsageError);
  EXPECT_THROW(of(iota(3)).prefetch(-2), UsageError);
}

TEST(Prefetch, BatchesStayIntactWhileTheProducerContinues) {
  const auto iterator = of(iota(3000)).batch(3).prefetch(2).iterator();
  std::int32_t expected = 0;
  while (const auto batch = iterator->next()) {
    for (const std::int32_t value : (*batch)[0].values<std::int32_t>())
      EXPECT_EQ(value, expected++);
  }
  EXPECT_EQ(expected, 3000);
}

}  // namespace
}  // namespace lockstep
