#include <gtest/gtest.h>

#include <atomic>
#include <map>

#include "data/positions.h"

namespace lockstep {
namespace {

// Maps the outer number n to a data set of lengths[n] numbers, starting at 1000 n.
DatasetFunction numbers_from(std::vector<std::int64_t> lengths) {
  return [lengths](const Element& element) {
    const std::int64_t n = element[0].values<std::int64_t>()[0];
    return Dataset::range(lengths[static_cast<std::size_t>(n)]).map([n](const Element& inner) {
      return Element{Tensor::scalar(1000 * n + inner[0].values<std::int64_t>()[0])};
    });
  };
}

Dataset interleaved(const std::vector<std::int64_t>& lengths, InterleaveOptions options) {
  return Dataset::range(std::ssize(lengths)).interleave(numbers_from(lengths), options);
}

// The order of tf.data: slots take turns of `block` elements, and an empty slot opens the next data
// set.
std::vector<std::int64_t> expected(const std::vector<std::int64_t>& lengths, std::size_t cycle,
                                   std::int64_t block) {
  struct Open {
    std::int64_t number;
    std::int64_t at;
  };
  std::vector<std::optional<Open>> slots(cycle);
  std::vector<std::int64_t> given;
  std::int64_t next = 0;
  std::int64_t in_turn = 0;
  std::size_t slot = 0;
  const auto advance = [&] {
    slot = (slot + 1) % cycle;
    in_turn = 0;
  };
  const auto some_open = [&] {
    return std::ranges::any_of(slots, [](const auto& open) { return open.has_value(); });
  };
  while (next < std::ssize(lengths) || some_open()) {
    if (!slots[slot]) {
      if (next < std::ssize(lengths)) {
        slots[slot] = Open{next++, 0};
      } else {
        advance();
      }
      continue;
    }
    Open& open = *slots[slot];
    if (open.at == lengths[static_cast<std::size_t>(open.number)]) {
      slots[slot].reset();
      advance();
      continue;
    }
    given.push_back(1000 * open.number + open.at++);
    if (++in_turn == block) advance();
  }
  return given;
}

const std::vector<std::vector<std::int64_t>> kLengths = {
    {}, {0}, {5}, {3, 0, 4, 1}, {1, 2, 3, 4, 5, 6, 7}, {0, 0, 0}, {9, 1, 9, 1, 0, 2, 5, 3}};

TEST(Interleave, TakesTurnsLikeTfData) {
  for (const std::vector<std::int64_t>& lengths : kLengths) {
    for (const int cycle : {1, 2, 3, 10}) {
      for (const std::int64_t block : {1, 2, 5}) {
        for (const int parallel : {1, 2, 4, AUTOTUNE}) {
          const Dataset dataset =
              interleaved(lengths, {.cycle = cycle, .block = block, .parallel = parallel});
          const std::vector<Element> elements = all_of(dataset.with_budget({.cores = 3}));
          EXPECT_EQ(numbers_of(elements), expected(lengths, static_cast<std::size_t>(cycle), block))
              << "cycle " << cycle << ", block " << block << ", parallel " << parallel;
          expect_ids_differ(elements);
        }
      }
    }
  }
}

TEST(Interleave, FollowsTheExampleInTfDatasDocumentation) {
  // Dataset.range(1, 6).interleave(x -> x repeated 6 times, cycle_length=2, block_length=4)
  const Dataset dataset = Dataset::range(5).interleave(
      [](const Element& element) {
        const std::int64_t x = element[0].values<std::int64_t>()[0] + 1;
        return Dataset::range(6).map([x](const Element&) { return Element{Tensor::scalar(x)}; });
      },
      {.cycle = 2, .block = 4, .parallel = 2});
  EXPECT_EQ(numbers_of(dataset),
            (std::vector<std::int64_t>{1, 1, 1, 1, 2, 2, 2, 2, 1, 1, 2, 2, 3, 3, 3,
                                       3, 4, 4, 4, 4, 3, 3, 4, 4, 5, 5, 5, 5, 5, 5}));
}

TEST(Interleave, SavedPositionsAreExactForAnyNumberOfThreads) {
  for (const std::vector<std::int64_t>& lengths : kLengths) {
    for (const auto& [cycle, block] : {std::pair(1, 1), std::pair(3, 1), std::pair(2, 3)}) {
      Variants variants{"interleave", {}};
      for (const int parallel : {1, 2, 4, AUTOTUNE}) {
        variants.datasets.push_back(
            interleaved(lengths, {.cycle = cycle, .block = block, .parallel = parallel}));
      }
      expect_positions_hold(variants);
      expect_positions_hold(variants, 3);
    }
  }
}

TEST(Interleave, InnerDataSetsAreReshuffledWithEveryPassOverTheOuterOne) {
  const auto shuffled = [](const Element&) { return Dataset::range(30).shuffle({.seed = 1}); };
  const Dataset once = Dataset::range(1).interleave(shuffled);
  EXPECT_NE(numbers_of(once, 0), numbers_of(once, 1));
  const std::vector<Element> twice =
      all_of(Dataset::range(1).repeat(2).interleave(shuffled, {.cycle = 1, .parallel = 2}));
  expect_ids_differ(twice);
  const std::vector<std::int64_t> numbers = numbers_of(twice);
  EXPECT_NE(std::vector(numbers.begin(), numbers.begin() + 30),
            std::vector(numbers.begin() + 30, numbers.end()));
}

TEST(Interleave, CanBeNested) {
  Variants variants{"nested", {}};
  for (const int parallel : {1, 3}) {
    const auto inner = [parallel](const Element& element) {
      return interleaved({2, element[0].values<std::int64_t>()[0], 3},
                         {.cycle = 2, .parallel = parallel})
          .shuffle({.buffer = 3, .seed = 2})
          .prefetch(2);
    };
    variants.datasets.push_back(Dataset::range(4)
                                    .interleave(inner, {.cycle = 2, .parallel = parallel})
                                    .with_budget({.cores = 1}));
  }
  expect_positions_hold(variants);
  expect_ids_differ(all_of(variants.datasets[1]));
}

TEST(Interleave, EachElementComesOnceEvenOutOfOrder) {
  const std::vector<std::int64_t> lengths = {9, 1, 9, 1, 0, 2, 5, 3, 8};
  std::vector<std::int64_t> sorted = expected(lengths, 1, 1);
  const Dataset dataset =
      interleaved(lengths, {.cycle = 3, .block = 2, .parallel = 3, .deterministic = false});
  std::ranges::sort(sorted);
  for (std::size_t k = 0; k <= sorted.size(); ++k) {
    const auto iterator = dataset.iterator();
    std::vector<Element> elements = rest_of(*iterator, k);
    const auto restored = dataset.iterator();
    restored->restore(iterator->save());
    for (Element& element : rest_of(*restored)) elements.push_back(std::move(element));
    expect_ids_differ(elements);
    std::vector<std::int64_t> numbers = numbers_of(elements);
    std::ranges::sort(numbers);
    EXPECT_EQ(numbers, sorted) << "after " << k;
  }
}

TEST(Interleave, ErrorsArriveInOrderAndRepeat) {
  for (const int parallel : {1, 3}) {
    const auto failing = [](const Element& element) {
      const std::int64_t n = element[0].values<std::int64_t>()[0];
      if (n == 3) throw std::runtime_error("no such file");
      return Dataset::range(2).map([n](const Element& inner) {
        return Element{Tensor::scalar(1000 * n + inner[0].values<std::int64_t>()[0])};
      });
    };
    const Dataset dataset =
        Dataset::range(6).interleave(failing, {.cycle = 1, .parallel = parallel});
    const auto iterator = dataset.iterator();
    EXPECT_EQ(numbers_of(rest_of(*iterator, 6)),
              (std::vector<std::int64_t>{0, 1, 1000, 1001, 2000, 2001}));
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(message_of<DataError>([&] { iterator->next(); }),
                "[interleave] sample 3 of epoch 0: no such file");
    }
  }
}

TEST(Interleave, AnInnerErrorLosesNoElement) {
  for (const int parallel : {1, 2, 4}) {
    std::atomic<bool> repaired = false;
    const auto failing = [&](const Element& element) {
      const std::int64_t n = element[0].values<std::int64_t>()[0];
      return Dataset::range(4).map(
          [&repaired, n](const Element& inner) {
            const std::int64_t value = 1000 * n + inner[0].values<std::int64_t>()[0];
            if (value == 1002 && !repaired) fail<DataError>("damaged");
            return Element{Tensor::scalar(value)};
          },
          {.spec = {{DType::I64, {}}}});
    };
    const Dataset dataset =
        Dataset::range(3).interleave(failing, {.cycle = 2, .parallel = parallel});
    const std::vector<std::int64_t> all = expected({4, 4, 4}, 2, 1);
    const auto iterator = dataset.iterator();
    EXPECT_EQ(numbers_of(rest_of(*iterator, 5)), std::vector(all.begin(), all.begin() + 5));
    EXPECT_THROW(iterator->next(), DataError);
    EXPECT_THROW(iterator->next(), DataError);
    if (parallel == 1) continue;  // the sequential map below has already skipped the element
    repaired = true;
    const auto restored = dataset.iterator();
    restored->restore(iterator->save());
    EXPECT_EQ(numbers_of(rest_of(*restored)), std::vector(all.begin() + 5, all.end()));
  }
}

TEST(Interleave, AnOuterErrorComesAfterTheElementsOpenedBeforeIt) {
  const Dataset outer = Dataset::range(5).map(
      [](const Element& element) {
        if (element[0].values<std::int64_t>()[0] == 2) fail<DataError>("cannot be listed");
        return element;
      },
      {.spec = {{DType::I64, {}}}});
  for (const int parallel : {1, 4}) {
    const auto iterator =
        outer.interleave(numbers_from({3, 3, 3, 3, 3}), {.cycle = 1, .parallel = parallel})
            .iterator();
    EXPECT_EQ(rest_of(*iterator, 6).size(), 6u);
    EXPECT_THROW(iterator->next(), DataError);
  }
}

TEST(Interleave, CanBeDestroyedAtAnyMoment) {
  const std::vector<std::int64_t> lengths = {9, 1, 9, 1, 0, 2, 5, 3};
  const std::vector<std::int64_t> all = expected(lengths, 3, 1);
  auto running = std::make_shared<std::atomic<int>>(0);
  const std::weak_ptr<std::atomic<int>> held = running;
  std::optional<Dataset> dataset =
      Dataset::range(std::ssize(lengths))
          .interleave(
              [running, open = numbers_from(lengths)](const Element& element) {
                ++*running;
                Dataset inner = open(element);
                --*running;
                return inner;
              },
              {.cycle = 3, .parallel = 4})
          .prefetch(2);
  for (std::size_t taken = 0; taken <= all.size() + 1; ++taken) {
    auto iterator = dataset->iterator();
    const auto end = all.begin() + static_cast<std::ptrdiff_t>(std::min(taken, all.size()));
    EXPECT_EQ(numbers_of(rest_of(*iterator, taken)), std::vector(all.begin(), end));
    iterator.reset();
    EXPECT_EQ(*running, 0) << "destroyed after " << taken << ", but a function still runs";
  }
  EXPECT_EQ(numbers_of(*dataset), all) << "the data set has not changed";
  running.reset();
  dataset.reset();
  EXPECT_TRUE(held.expired()) << "the function is still held";
}

TEST(Interleave, IsReportedAsOneStageHoweverManyAreOpen) {
  const auto iterator = interleaved({5, 5, 5, 5}, {.cycle = 2, .parallel = 2}).iterator();
  rest_of(*iterator);
  const PipelineReport report = iterator->report();
  std::map<std::string, std::int64_t> items;
  for (const StageReport& stage : report.stages) items[stage.name] += stage.items;
  EXPECT_EQ(items["interleave"], 20);
  EXPECT_EQ(items["map"], 20) << report.text();
}

TEST(Interleave, InvalidArgumentsAreRefused) {
  const auto function = numbers_from({1});
  EXPECT_THROW(Dataset::range(1).interleave(nullptr), UsageError);
  EXPECT_THROW(Dataset::range(1).interleave(function, {.cycle = 0}), UsageError);
  EXPECT_THROW(Dataset::range(1).interleave(function, {.block = 0}), UsageError);
  EXPECT_THROW(Dataset::range(1).interleave(function, {.parallel = 0}), UsageError);
  const auto different = [](const Element& element) {
    const Dataset numbers = Dataset::range(2);
    return element[0].values<std::int64_t>()[0] == 0 ? numbers : numbers.enumerate();
  };
  const auto iterator = Dataset::range(2).interleave(different, {.cycle = 1}).iterator();
  rest_of(*iterator, 2);
  const std::string message = message_of<UsageError>([&] { iterator->next(); });
  EXPECT_TRUE(contains(message, "sample 1 of epoch 0")) << message;
}

}  // namespace
}  // namespace lockstep
