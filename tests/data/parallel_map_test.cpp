// map on several threads: the same elements and errors in the same order, no leaks, and rows that
// are written straight into batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <mutex>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/data/dataset.h"

namespace lockstep {
namespace {

Dataset numbers(std::int64_t count) {
  std::vector<std::int64_t> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = i;
  return Dataset::from_tensor_slices({Tensor::of(values, {count})});
}

std::vector<double> all(Iterator& iterator) {
  std::vector<double> values;
  while (const std::optional<Element> element = iterator.next()) {
    values.push_back(element->front().item());
  }
  return values;
}

std::vector<double> all(const Dataset& dataset, std::uint64_t epoch = 0) {
  return all(*dataset.iterator(epoch));
}

// Takes a different time for each element.
Element squared(const Element& element) {
  const auto value = element.front().values<std::int64_t>()[0];
  volatile std::int64_t spin = value * 7919 % 1000;
  while (spin > 0) spin = spin - 1;
  return {Tensor::scalar<std::int64_t>(value * value)};
}

TEST(ParallelMap, GivesTheSameOrderOnAnyNumberOfThreads) {
  const std::vector<double> expected = all(numbers(500).map(squared));
  ASSERT_EQ(expected.size(), 500u);
  for (const int threads : {2, 3, 8, AUTOTUNE}) {
    EXPECT_EQ(all(numbers(500).map(squared, {.parallel = threads})), expected) << threads;
    EXPECT_EQ(all(numbers(500).map(squared, {.parallel = threads}).prefetch()), expected);
    EXPECT_EQ(
        all(numbers(500).map(squared, {.parallel = threads}).prefetch(3).with_budget({.cores = 1})),
        expected);
  }
}

TEST(ParallelMap, WithoutOrderGivesEveryElementOnce) {
  std::vector<double> expected = all(numbers(300).map(squared));
  std::vector<double> values = all(
      numbers(300).map(squared, {.parallel = 4, .deterministic = false}).with_budget({.cores = 4}));
  std::ranges::sort(values);
  EXPECT_EQ(values, expected);
}

TEST(ParallelMap, RandomNumbersDependOnlyOnSeedEpochAndSample) {
  const auto drawn = [](const Element&, RandomSequence& random) -> Element {
    return {Tensor::scalar(random.uniform())};
  };
  const Dataset plain = numbers(64).map(drawn, {.seed = 3});
  const std::vector<double> expected = all(plain);
  EXPECT_EQ(std::set<double>(expected.begin(), expected.end()).size(), expected.size());
  EXPECT_EQ(all(numbers(64).map(drawn, {.parallel = 4, .seed = 3})), expected);
  EXPECT_NE(all(numbers(64).map(drawn, {.seed = 4})), expected);
  EXPECT_NE(all(plain, 1), expected);

  // A sample's random number does not depend on the order of the samples.
  std::vector<double> shuffled = all(numbers(64).shuffle({.seed = 9}).map(drawn, {.seed = 3}));
  EXPECT_NE(shuffled, expected);
  std::vector<double> sorted = expected;
  std::ranges::sort(sorted);
  std::ranges::sort(shuffled);
  EXPECT_EQ(shuffled, sorted);

  // Each round of repeat is an epoch with new random numbers.
  const std::vector<double> twice = all(numbers(64).repeat(2).map(drawn, {.seed = 3}));
  ASSERT_EQ(twice.size(), 128u);
  EXPECT_EQ(std::set<double>(twice.begin(), twice.end()).size(), 128u);
}

Element odd_numbers_are_broken(const Element& element) {
  const auto value = element.front().values<std::int64_t>()[0];
  if (value % 2 == 1) fail<DataError>("picture_{}.jpg: it is odd", value);
  return element;
}

TEST(ParallelMap, AnErrorComesInOrderAndNamesStageAndSample) {
  for (const int threads : {1, 4}) {
    const Dataset broken = numbers(10).map(
        [](const Element& element) {
          return element.front().item() == 5 ? odd_numbers_are_broken(element) : element;
        },
        {.parallel = threads, .name = "decode"});
    const std::unique_ptr<Iterator> iterator = broken.iterator();
    for (int i = 0; i < 5; ++i) {
      ASSERT_TRUE(iterator->next().has_value());
    }
    try {
      iterator->next();
      FAIL() << "no error";
    } catch (const DataError& error) {
      EXPECT_STREQ(error.what(), "[map decode] sample 5 of epoch 0: picture_5.jpg: it is odd");
    }
    if (threads > 1) {
      EXPECT_THROW(iterator->next(), DataError);
    }
  }
}

TEST(ParallelMap, SkipsAndListsErrorsOnRequest) {
  for (const int threads : {1, 4}) {
    const Dataset patched =
        numbers(20).map(odd_numbers_are_broken, {.parallel = threads, .on_error = OnError::Skip});
    const std::unique_ptr<Iterator> iterator = patched.iterator();
    EXPECT_EQ(all(*iterator), (std::vector<double>{0, 2, 4, 6, 8, 10, 12, 14, 16, 18}));
    const PipelineReport report = iterator->report();
    EXPECT_EQ(report.skipped, 10);
    ASSERT_EQ(report.skipped_first.size(), 10u);
    EXPECT_NE(report.skipped_first[0].find("picture_1.jpg"), std::string::npos);
    EXPECT_NE(report.text().find("picture_19.jpg"), std::string::npos);
  }
}

TEST(ParallelMap, AnExceptionOfAUsersFunctionIsADataError) {
  const Dataset broken =
      numbers(3).map([](const Element&) -> Element { throw std::runtime_error("no such thing"); },
                     {.spec = {{DType::I64, {}}}, .parallel = 2});
  try {
    broken.iterator()->next();
    FAIL() << "no error";
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "[map] sample 0 of epoch 0: no such thing");
  }
}

TEST(ParallelMap, AnIteratorCanBeDestroyedMidway) {
  std::atomic<int> running = 0;
  std::atomic<int> most = 0;
  for (int given = 0; given < 20; ++given) {
    const std::unique_ptr<Iterator> iterator = numbers(1000)
                                                   .map(
                                                       [&](const Element& element) {
                                                         most = std::max<int>(most, ++running);
                                                         Element result = squared(element);
                                                         --running;
                                                         return result;
                                                       },
                                                       {.spec = {{DType::I64, {}}}, .parallel = 3})
                                                   .batch(4)
                                                   .prefetch(2)
                                                   .with_budget({.cores = 3})
                                                   .iterator();
    for (int i = 0; i < given; ++i) iterator->next();
  }
  EXPECT_EQ(running, 0);
  EXPECT_GT(most, 0);
}

TEST(ParallelMap, SeveralCallsRunAtOnce) {
  // Each call waits for the other one: one at a time would deadlock.
  std::latch both(2);
  const Dataset pair = numbers(2).map(
      [&](const Element& element) {
        both.arrive_and_wait();
        return element;
      },
      {.spec = {{DType::I64, {}}}, .parallel = 2});
  EXPECT_EQ(all(pair.with_budget({.cores = 2})).size(), 2u);
}

// Writes the number into three floats and records their address.
WriteFunction tripled(std::set<const std::byte*>* written, std::mutex* mutex) {
  return [=](const Element& element, RandomSequence&, std::span<Tensor> to) {
    const auto value = static_cast<float>(element.front().values<std::int64_t>()[0]);
    for (float& each : to[0].values<float>()) each = value;
    std::lock_guard lock(*mutex);
    written->insert(to[0].raw());
  };
}

TEST(ParallelMap, RowsAreWrittenStraightIntoTheBatch) {
  for (const int threads : {1, 2, 4}) {
    std::set<const std::byte*> written;
    std::mutex mutex;
    const Dataset rows = numbers(10).map_into(tripled(&written, &mutex),
                                              {.spec = {{DType::F32, {3}}}, .parallel = threads});
    const std::unique_ptr<Iterator> iterator = rows.batch(4).iterator();
    std::int64_t next = 0;
    std::vector<Element> held;
    while (const std::optional<Element> batch = iterator->next()) {
      held.push_back(*batch);
      for (std::int64_t row = 0; row < batch->front().shape()[0]; ++row, ++next) {
        const Tensor sample = batch->front().rows(row, 1);
        EXPECT_EQ(sample.values<float>()[2], static_cast<float>(next));
        std::lock_guard lock(mutex);
        EXPECT_TRUE(written.contains(sample.raw())) << "row " << row << " was copied";
      }
    }
    EXPECT_EQ(next, 10);
  }
}

TEST(ParallelMap, BatchesStayFullWhenRowsAreMissing) {
  std::vector<float> first;
  for (const int threads : {1, 2, 5}) {
    const Dataset rows = numbers(50).map_into(
        [](const Element& element, RandomSequence&, std::span<Tensor> to) {
          const auto value = element.front().values<std::int64_t>()[0];
          if (value % 7 == 3) fail<DataError>("record {} is broken", value);
          to[0].values<float>()[0] = static_cast<float>(value);
        },
        {.spec = {{DType::F32, {1}}}, .parallel = threads, .on_error = OnError::Skip});
    const std::unique_ptr<Iterator> iterator = rows.batch(8).iterator();
    std::vector<float> values;
    while (const std::optional<Element> batch = iterator->next()) {
      if (values.size() + 8 <= 43) {
        EXPECT_EQ(batch->front().shape()[0], 8);
      }
      for (const float value : std::as_const(batch->front()).values<float>()) {
        values.push_back(value);
      }
    }
    if (first.empty()) first = values;
    EXPECT_EQ(values, first);
    EXPECT_EQ(values.size(), 43u);
    EXPECT_TRUE(std::ranges::is_sorted(values));
  }
}

TEST(ParallelMap, ASavedPositionIsExactWhateverIsInFlight) {
  const auto pipeline = [](int threads, bool ordered) {
    return numbers(60)
        .shuffle({.buffer = 16, .seed = 5})
        .map(squared, {.parallel = threads, .deterministic = ordered})
        .batch(4)
        .prefetch(3);
  };
  const auto values_of = [](Iterator& iterator) {
    std::vector<std::int64_t> values;
    while (const std::optional<Element> batch = iterator.next()) {
      for (const std::int64_t value : std::as_const(batch->front()).values<std::int64_t>()) {
        values.push_back(value);
      }
    }
    return values;
  };
  const std::vector<std::int64_t> expected = values_of(*pipeline(1, true).iterator(2));
  for (std::size_t given = 0; given <= 15; ++given) {
    const std::unique_ptr<Iterator> iterator = pipeline(3, true).iterator(2);
    for (std::size_t i = 0; i < given; ++i) iterator->next();
    const std::string position = iterator->save();
    for (const int threads : {1, 4}) {
      const std::unique_ptr<Iterator> other = pipeline(threads, true).iterator();
      other->restore(position);
      EXPECT_EQ(values_of(*other),
                std::vector<std::int64_t>(expected.begin() + static_cast<std::ptrdiff_t>(4 * given),
                                          expected.end()))
          << given << " batches, " << threads << " threads";
    }
  }
  // Without an order, nothing is lost or repeated.
  for (std::size_t given = 0; given <= 15; ++given) {
    const std::unique_ptr<Iterator> iterator = pipeline(3, false).iterator(2);
    std::vector<std::int64_t> values;
    for (std::size_t i = 0; i < given; ++i) {
      const std::optional<Element> batch = iterator->next();
      for (const std::int64_t value : std::as_const(batch->front()).values<std::int64_t>()) {
        values.push_back(value);
      }
    }
    const std::unique_ptr<Iterator> other = pipeline(2, false).iterator();
    other->restore(iterator->save());
    for (const std::int64_t value : values_of(*other)) values.push_back(value);
    std::vector<std::int64_t> sorted = expected;
    std::ranges::sort(sorted);
    std::ranges::sort(values);
    EXPECT_EQ(values, sorted) << given << " batches";
  }
}

TEST(ParallelMap, WithoutOrderPositionsAreExactOverBatchesToo) {
  const Dataset pairs = numbers(40)
                            .batch(2)
                            .map(
                                [](const Element& pair) -> Element {
                                  return {squared({pair[0].rows(0, 1).reshaped({})})[0], pair[0]};
                                },
                                {.parallel = 3, .deterministic = false})
                            .prefetch(2)
                            .with_budget({.cores = 3});
  for (std::size_t given = 0; given <= 20; ++given) {
    const std::unique_ptr<Iterator> iterator = pairs.iterator();
    std::vector<double> values;
    for (std::size_t i = 0; i < given; ++i) values.push_back(iterator->next()->front().item());
    const std::unique_ptr<Iterator> other = pairs.iterator();
    other->restore(iterator->save());
    for (const double value : all(*other)) values.push_back(value);
    std::ranges::sort(values);
    std::vector<double> expected;
    for (int i = 0; i < 40; i += 2) expected.push_back(i * i);
    EXPECT_EQ(values, expected) << given;
  }
}

TEST(ParallelMap, RowsAreWrittenInPlaceThroughRepeatAndTakeToo) {
  std::set<const std::byte*> written;
  std::mutex mutex;
  const Dataset rows =
      numbers(5).map_into(tripled(&written, &mutex), {.spec = {{DType::F32, {3}}}, .parallel = 2});
  const std::unique_ptr<Iterator> iterator = rows.repeat(4).take(16).batch(4).iterator();
  std::vector<float> values;
  std::vector<Element> held;
  while (const std::optional<Element> batch = iterator->next()) {
    held.push_back(*batch);
    for (std::int64_t row = 0; row < 4; ++row) {
      const Tensor sample = batch->front().rows(row, 1);
      values.push_back(sample.values<float>()[1]);
      std::lock_guard lock(mutex);
      EXPECT_TRUE(written.contains(sample.raw())) << "row " << row << " was copied";
    }
  }
  EXPECT_EQ(values, (std::vector<float>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0}));
}

}  // namespace
}  // namespace lockstep
