// Caches in memory and in files.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <thread>

#include "data/positions.h"
#include "lockstep/data/datasets.h"
#include "temporary_folder.h"

namespace lockstep {
namespace {

// Counts in `made` how often an element is computed.
Dataset counted(std::int64_t count, std::atomic<int>& made) {
  return Dataset::range(count).map(
      [&made](const Element& element) {
        ++made;
        return Element{Tensor::scalar(element[0].values<std::int64_t>()[0] * 3)};
      },
      {.spec = {{DType::I64, {}}}});
}

std::vector<std::int64_t> threes(std::int64_t count) {
  std::vector<std::int64_t> numbers = count_up(count);
  for (std::int64_t& number : numbers) number *= 3;
  return numbers;
}

// Both kinds of cache; each call of the second uses a new file.
struct Kinds {
  TemporaryFolder folder;
  int files = 0;
  std::vector<std::pair<std::string, std::function<Dataset(const Dataset&)>>> all = {
      {"memory", [](const Dataset& dataset) { return dataset.cache(); }},
      {"file", [this](const Dataset& dataset) {
         return dataset.cache(folder / fmt::format("cache {}", files++));
       }}};
};

TEST(Cache, ComputesElementsOnce) {
  Kinds kinds;
  for (const auto& [name, cache] : kinds.all) {
    std::atomic<int> made = 0;
    const Dataset dataset = cache(counted(7, made));
    for (int pass = 0; pass < 3; ++pass) {
      EXPECT_EQ(numbers_of(dataset, static_cast<std::uint64_t>(pass)), threes(7)) << name;
    }
    EXPECT_EQ(numbers_of(dataset.repeat(3)).size(), 21u);
    EXPECT_EQ(made, 7) << name;
  }
}

TEST(Cache, SamplesKeepTheirNumbersAndGetTheEpochOfThePass) {
  Kinds kinds;
  for (const auto& [name, cache] : kinds.all) {
    std::atomic<int> made = 0;
    const Dataset dataset = cache(counted(4, made));
    for (const std::uint64_t epoch : {5, 6, 0}) {
      const std::vector<Element> elements = all_of(dataset, epoch);
      for (std::size_t i = 0; i < elements.size(); ++i) {
        EXPECT_EQ(elements[i].sample, (SampleId{epoch, i})) << name;
      }
    }
    expect_ids_differ(all_of(cache(counted(4, made).repeat(3))));
    expect_ids_differ(all_of(cache(counted(4, made).repeat(3)).repeat(3)));
  }
}

TEST(Cache, KeepsTheOrderOfEpoch0WhicheverEpochFillsIt) {
  Kinds kinds;
  for (const auto& [name, cache] : kinds.all) {
    std::atomic<int> made = 0;
    const Dataset shuffled = counted(30, made).shuffle({.seed = 1});
    const Dataset dataset = cache(shuffled);
    EXPECT_EQ(numbers_of(dataset, 4), numbers_of(shuffled, 0)) << name;
    EXPECT_EQ(numbers_of(dataset, 1), numbers_of(shuffled, 0)) << name;
  }
}

TEST(Cache, RowsOfATableStayRows) {
  const Dataset table = Dataset::from_tensor_slices({Tensor::of(count_up(20), {20})});
  const Dataset shuffled = table.shuffle({.seed = 1});
  for (const std::uint64_t epoch : {0, 3}) {
    const Dataset by_elements =
        shuffled.map([](const Element& element) { return element; }).cache();
    EXPECT_TRUE(same_elements(all_of(shuffled.cache(), epoch), all_of(by_elements, epoch)));
    EXPECT_TRUE(same_elements(all_of(shuffled.cache().batch(3), epoch),
                              all_of(by_elements.batch(3), epoch)));
  }
  const Dataset repeated = table.repeat(3);
  expect_ids_differ(all_of(repeated.cache().repeat(3)));
  EXPECT_TRUE(same_elements(all_of(repeated.cache().repeat(3).batch(1)),
                            all_of(repeated.map([](const Element& element) { return element; })
                                       .cache()
                                       .repeat(3)
                                       .batch(1))));
  expect_positions_hold("rows", shuffled.cache().shuffle({.seed = 3}).batch(3));
}

TEST(Cache, PositionsHoldInTheFirstPassAndInLaterOnes) {
  Kinds kinds;
  for (const auto& [name, cache] : kinds.all) {
    std::atomic<int> made = 0;
    const Dataset plain = counted(12, made).shuffle({.buffer = 5, .seed = 2});
    // Each variant has a separate cache, so that positions are restored with and without it.
    for (const bool filled : {false, true}) {
      Variants variants{name, {}};
      for (int i = 0; i < 3; ++i) variants.datasets.push_back(cache(plain).batch(2).prefetch(1));
      if (filled) {
        for (const Dataset& dataset : variants.datasets) all_of(dataset);
      }
      expect_positions_hold(variants);
      expect_positions_hold(variants, 3);
    }
  }
}

TEST(Cache, APositionMeansTheSameWithoutTheCache) {
  Kinds kinds;
  for (const auto& [name, cache] : kinds.all) {
    for (const bool from_cache : {false, true}) {
      for (const bool to_cache : {false, true}) {
        for (std::size_t k = 0; k <= 9; ++k) {
          std::atomic<int> made = 0;
          const Dataset plain = counted(9, made).shuffle({.buffer = 4, .seed = 2});
          const Dataset from = cache(plain);
          const Dataset to = cache(plain);
          const std::vector<Element> all = all_of(cache(plain), 2);
          if (from_cache) all_of(from);
          if (to_cache) all_of(to);
          const auto iterator = from.iterator(2);
          rest_of(*iterator, k);
          const auto restored = to.iterator();
          restored->restore(iterator->save());
          EXPECT_TRUE(same_elements(rest_of(*restored), std::span(all).subspan(k)))
              << name << " " << from_cache << " " << to_cache << " " << k;
          // A pass that did not start at the beginning has not filled the cache.
          EXPECT_TRUE(same_elements(all_of(to, 2), all)) << name << " " << k;
        }
      }
    }
  }
}

TEST(Cache, AHalfFinishedPassIsNotUsed) {
  Kinds kinds;
  for (const auto& [name, cache] : kinds.all) {
    std::atomic<int> made = 0;
    const Dataset dataset = cache(counted(10, made));
    rest_of(*dataset.iterator(), 4);
    EXPECT_EQ(numbers_of(dataset), threes(10)) << name;
    EXPECT_EQ(made, 14) << name;
    EXPECT_EQ(numbers_of(dataset), threes(10)) << name;
    EXPECT_EQ(made, 14) << name;
  }
}

TEST(Cache, ConcurrentPassesDoNotMix) {
  Kinds kinds;
  for (const auto& [name, cache] : kinds.all) {
    std::atomic<int> made = 0;
    const Dataset dataset = cache(counted(10, made));
    const auto first = dataset.iterator();
    const auto second = dataset.iterator();
    std::vector<Element> from_first = rest_of(*first, 3);
    EXPECT_EQ(numbers_of(rest_of(*second)), threes(10)) << name;
    for (Element& element : rest_of(*first)) from_first.push_back(std::move(element));
    EXPECT_EQ(numbers_of(from_first), threes(10)) << name;
    EXPECT_EQ(made, 20) << name;
    EXPECT_EQ(numbers_of(dataset), threes(10)) << name;
    EXPECT_EQ(made, 20) << name;
  }
}

TEST(Cache, IsThreadSafe) {
  Kinds kinds;
  for (const auto& [name, cache] : kinds.all) {
    std::atomic<int> made = 0;
    const Dataset dataset = cache(counted(50, made));
    std::vector<std::jthread> threads;
    std::atomic<int> right = 0;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (int pass = 0; pass < 3; ++pass) right += numbers_of(dataset) == threes(50);
      });
    }
    threads.clear();
    EXPECT_EQ(right, 12) << name;
  }
}

TEST(Cache, IsFilledWithSkippedElementsToo) {
  Kinds kinds;
  for (const auto& [name, cache] : kinds.all) {
    std::atomic<int> made = 0;
    const Dataset dataset = cache(counted(10, made));
    EXPECT_EQ(numbers_of(dataset.shard(2, 1)).size(), 5u);
    EXPECT_EQ(made, 10) << name;
    EXPECT_EQ(numbers_of(dataset.skip(9)), (std::vector<std::int64_t>{27})) << name;
    EXPECT_EQ(made, 10) << name;
  }
}

TEST(Cache, EachShardHasItsOwnIfTheDataIsShardedBelow) {
  Kinds kinds;
  for (const auto& [name, cache] : kinds.all) {
    std::atomic<int> made = 0;
    const Dataset dataset = cache(counted(10, made).shard());
    for (int pass = 0; pass < 2; ++pass) {
      std::vector<std::int64_t> both;
      for (const std::int64_t shard : {0, 1}) {
        const auto iterator = dataset.iterator({.shard = shard, .shards = 2});
        for (const std::int64_t number : numbers_of(rest_of(*iterator))) both.push_back(number);
      }
      std::ranges::sort(both);
      EXPECT_EQ(both, threes(10)) << name;
    }
    EXPECT_EQ(made, 10) << name;
  }
}

TEST(Cache, EndlessDataIsRefused) {
  Kinds kinds;
  for (const auto& [name, cache] : kinds.all) {
    EXPECT_THROW(cache(Dataset::range(3).repeat()), UsageError) << name;
  }
}

TEST(MemoryCache, AnErrorEndsThePassAndKeepsNothing) {
  std::atomic<bool> repaired = false;
  const Dataset dataset = Dataset::range(6)
                              .map(
                                  [&](const Element& element) {
                                    if (element[0].values<std::int64_t>()[0] == 3 && !repaired) {
                                      fail<DataError>("damaged");
                                    }
                                    return element;
                                  },
                                  {.spec = {{DType::I64, {}}}})
                              .cache();
  const auto iterator = dataset.iterator();
  rest_of(*iterator, 3);
  EXPECT_THROW(iterator->next(), DataError);
  EXPECT_THROW(iterator->next(), DataError);
  repaired = true;
  EXPECT_EQ(numbers_of(dataset), count_up(6));
}

TEST(MemoryCache, KeepsToTheBudget) {
  const Dataset dataset = datasets::synthetic({{DType::U8, {1000}}}, {.count = 20})
                              .cache()
                              .with_budget({.cores = 1, .memory_bytes = 10'500});
  const auto iterator = dataset.iterator();
  EXPECT_EQ(rest_of(*iterator, 10).size(), 10u);
  const std::string message = message_of<UsageError>([&] { iterator->next(); });
  EXPECT_TRUE(contains(message, "1000")) << message;
  EXPECT_TRUE(contains(message, "10500")) << message;
  EXPECT_TRUE(contains(message, "cache(file)")) << message;
  // With a larger budget, the user can continue from the saved position.
  const Dataset bigger = dataset.with_budget({.cores = 1, .memory_bytes = 30'000});
  const auto restored = bigger.iterator();
  restored->restore(iterator->save());
  EXPECT_EQ(rest_of(*restored).size(), 10u);

  const auto filled = bigger.iterator();
  EXPECT_EQ(rest_of(*filled).size(), 20u);
  EXPECT_EQ(filled->report().memory_reserved, 20'000u);
  EXPECT_EQ(all_of(bigger.repeat(2)).size(), 40u);
  EXPECT_THROW(all_of(dataset), UsageError) << "the cache counts against the smaller budget, too";
}

TEST(FileCache, IsReusedByLaterRuns) {
  TemporaryFolder folder;
  std::atomic<int> made = 0;
  const std::vector<Element> first = all_of(counted(8, made).cache(folder / "cache"));
  EXPECT_EQ(folder.files(), 1u);
  made = 0;
  EXPECT_TRUE(same_elements(all_of(counted(8, made).cache(folder / "cache")), first));
  EXPECT_EQ(made, 0);
}

TEST(FileCache, AppearsOnlyWhenItIsWhole) {
  TemporaryFolder folder;
  std::atomic<int> made = 0;
  {
    const auto iterator = counted(8, made).cache(folder / "cache").iterator();
    EXPECT_EQ(folder.files(), 0u) << "nothing is written before the first element is requested";
    rest_of(*iterator, 8);
    EXPECT_FALSE(std::filesystem::exists(folder / "cache"));
  }
  EXPECT_EQ(folder.files(), 0u);
}

TEST(FileCache, LeftoversOfADeadProcessAreOverwritten) {
  TemporaryFolder folder;
  std::ofstream(folder / "cache.writing") << std::string(100'000, 'x');
  std::atomic<int> made = 0;
  const Dataset dataset = counted(8, made).cache(folder / "cache");
  EXPECT_EQ(numbers_of(dataset), threes(8));
  EXPECT_EQ(numbers_of(dataset), threes(8));
  EXPECT_EQ(made, 8);
  EXPECT_EQ(folder.files(), 1u);
}

TEST(FileCache, TheCacheOfAnotherDataSetIsRefused) {
  TemporaryFolder folder;
  all_of(Dataset::range(8).cache(folder / "cache"));
  const std::string message =
      message_of<UsageError>([&] { all_of(Dataset::range(9).cache(folder / "cache")); });
  EXPECT_TRUE(contains(message, "range(8)")) << message;
  EXPECT_TRUE(contains(message, "range(9)")) << message;
}

TEST(FileCache, AFullDiskIsAnErrorAndLeavesNothing) {
  TemporaryFolder folder;
  const Dataset dataset =
      datasets::synthetic({{DType::U8, {300'000}}}, {.count = 20}).cache(folder / "cache");
  struct rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 1'000'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto iterator = dataset.iterator();
  const std::string message = message_of<DataError>([&] { rest_of(*iterator); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_TRUE(contains(message, (folder / "cache").string())) << message;
  EXPECT_EQ(folder.files(), 0u);
  EXPECT_THROW(iterator->next(), DataError);
  EXPECT_EQ(all_of(dataset).size(), 20u);
}

TEST(FileCache, AFolderThatCannotBeWrittenIsAnError) {
  TemporaryFolder folder;
  std::ofstream(folder / "file") << "x";
  EXPECT_THROW(all_of(Dataset::range(3).cache(folder / "file" / "cache")), DataError);
  EXPECT_THROW(Dataset::range(3).cache(""), UsageError);
  EXPECT_EQ(all_of(Dataset::range(3).cache(folder / "new" / "cache")).size(), 3u);
}

}  // namespace
}  // namespace lockstep
